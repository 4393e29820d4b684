"""The Plan (workloads, scaling, traffic, and the decisions behind them), its inputs, and the log of one plan() run.

Pure data; render() writes the Plan out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from pilotlight.k8s.adapters import Adapter
from pilotlight.spec.problems import Problem, Problems
from pilotlight.spec.service import Component, Role, Service

Json = Any
ADAPTERS_DIR: Final = "/mnt/adapters"
PUBLISHED_IMAGE: Final = "pilotlight/predictor:0.1.0"  # as built-in runtimes name it: that of variant `cpu`
KNATIVE_HOST_TEMPLATE: Final = "{name}.{namespace}.{domain}"  # of the Route that has the service's name
Mode = Literal["serverless", "raw", "multi-node", "stateful", "virtual"]
Scaler = Literal["kpa", "knative-hpa", "hpa", "keda", "none"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of `platformctl explain`: topic, decision and reason."""

    topic: str  # "engine: mode"
    value: str  # "serverless"
    reason: str  # "engine.minReplicas = 0"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement on the cluster: a CRD, a Knative feature flag, an add-on, a minimum version."""

    kind: Literal["crd", "feature", "addon", "version"]
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger of a ScaledObject; built by plan/scaling/keda.py only, which excludes unsafe combinations."""

    type: str
    name: str
    metadata: Mapping[str, str]
    metric_type: Literal["Value", "AverageValue", "Utilization"] | None = None
    authentication: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Settings of the one autoscaler that owns the replica count of a workload."""

    scaler: Scaler
    min_replicas: int
    max_replicas: int
    annotations: Mapping[str, str] = field(default_factory=dict)  # kpa, knative-hpa
    metrics: tuple[Mapping[str, Json], ...] = ()  # hpa: autoscaling/v2 metrics
    behavior: Mapping[str, Json] = field(default_factory=dict)
    triggers: tuple[Trigger, ...] = ()  # keda
    fallback: Mapping[str, Json] = field(default_factory=dict)
    polling_interval: int = 15
    cooldown_period: int = 300
    initial_cooldown_period: int = 0
    modifiers: Mapping[str, Json] = field(default_factory=dict)
    authentications: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)  # TriggerAuthentication name → spec


@dataclass(frozen=True, slots=True)
class Traffic:
    """A share of a component's requests; the shares of one component add up to 100."""

    revision: str
    percent: int
    tag: str = ""
    latest: bool = False


@dataclass(frozen=True, slots=True)
class PlannedAdapter:
    """An adapter that an engine serves beside its base model."""

    name: str
    uri: str
    named_at: str  # path in the document
    rank: int = 0  # 0: unknown
    path: str = ""  # where the engine reads it


@dataclass(frozen=True, slots=True)
class Workload:
    """One revision of one component; `template` is the pod template (metadata and spec) as applied."""

    role: Role
    name: str  # of the Knative Service, Deployment, StatefulSet or LeaderWorkerSet
    revision: str
    mode: Mode
    template: Mapping[str, Json]
    scaling: Scaling
    traffic: tuple[Traffic, ...] = ()
    strategy: Mapping[str, Json] = field(default_factory=dict)
    replicas: int | None = None  # None: an autoscaler owns the count
    worker_template: Mapping[str, Json] | None = None
    group_size: int = 1  # pods of one multi-node group, with the leader
    port: int = 8080
    port_name: str = "http1"
    metrics_port: int | None = 8082
    container_concurrency: int | None = None
    timeout_seconds: int | None = None
    progress_deadline_seconds: int = 600
    disruption: Mapping[str, Json] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_pilotlight: bool = True
    selector: Mapping[str, str] = field(default_factory=dict)  # unique pod labels; empty: render() derives them
    cluster: Literal["leader-worker-set", "ray"] = "leader-worker-set"  # controller of multi-node groups
    enforces_access: bool = False  # its pods check tokens, JWTs and rates themselves
    internal: bool = False  # called by another workload only: no public address
    canary: bool = False  # the canary variant of its role
    pod_security: Literal["restricted", "baseline", "privileged"] = "restricted"
    model_bytes: int = 0  # size of its model; 0: unknown, or none
    model_uris: tuple[str, ...] = ()  # whose content the revision is to be pinned to


@dataclass(frozen=True, slots=True)
class Activator:
    """Proxy that buffers requests while a service is at zero: our gateway, or the HTTP add-on's interceptor.

    `route` is the InterceptorRoute's spec without target and hosts: `scalingMetric`, `timeouts`, `coldStart`.
    """

    kind: Literal["gateway", "interceptor"]
    service: str
    namespace: str
    port: int
    route: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointPicker:
    """Endpoint picker of an InferencePool; `plugins` is its configuration, empty: its default."""

    container: Mapping[str, Json]
    pod: Mapping[str, Json]
    replicas: int
    plugins: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Input of render(). `objects` are companion documents that need no planning."""

    name: str
    namespace: str
    mode: str  # of the service as a whole, as explain shows it
    workloads: tuple[Workload, ...]
    entry: str  # the workload that receives the service's requests
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[Problem, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    service_account: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    gateway: Mapping[str, str] = field(default_factory=dict)  # parent of HTTPRoutes; empty: none is rendered
    mapped_host: str = ""  # that a DomainMapping leads to Knative's entry; empty: Knative's own host
    monitoring: bool = True
    expose: str = ""  # type of the entry Service; empty: ClusterIP
    annotations: Mapping[str, str] = field(default_factory=dict)
    activator: Activator | None = None  # None: requests go straight to the entry's Service
    endpoint_picker: EndpointPicker | None = None  # requests go to it by an InferencePool, in place of a router
    access_file: str = ""  # access rules that its pods enforce, the content of a Secret; empty: they enforce none
    prometheus_namespace: str = ""  # where Prometheus runs; empty: outside the cluster
    objects: tuple[Mapping[str, Json], ...] = ()  # complete documents, applied unchanged


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of the target, as far as known; the defaults are a cluster with everything installed."""

    knative: bool = True
    keda: str = "2.21"
    gateway_api: bool = True
    http_add_on: bool = False
    our_gateway: bool = True
    access_at_gateway: bool = False  # every request passes our gateway, which enforces access, as on one machine
    prometheus_operator: bool = True
    leader_worker_set: bool = True
    gpus: int | None = None  # free GPUs; None: unknown
    gpus_total: int | None = None  # free or not
    gpu_memory: int = 0  # bytes of the smallest GPU; 0: unknown
    features: frozenset[str] = frozenset()  # Knative feature flags that are on
    prometheus: str = "http://prometheus-operated.monitoring.svc:9090"
    load_rate_bytes_s: int = 200_000_000  # load rate from the model store to the device
    image: str = PUBLISHED_IMAGE  # another one is used as it is, for every model
    image_registry: str = ""  # where the variants of our image are: `registry.example.com/team`
    default_mode: Literal["serverless", "raw"] = "serverless"  # of KServe documents without a deploymentMode
    pod_security: str = ""  # forced level (restricted, baseline, privileged); empty: the strictest possible
    gateway_scaler: str = "pilotlight-gateway.pilotlight-system.svc:9090"  # our gateway's KEDA scaler
    http_scaler: str = "keda-add-ons-http-external-scaler.keda:9090"
    route_parent: Mapping[str, str] = field(
        default_factory=lambda: {"name": "pilotlight", "namespace": "pilotlight-system"}
    )
    domain: str = "example.com"
    host_template: str = KNATIVE_HOST_TEMPLATE  # of the public host of a service
    domain_mapping: bool = False  # Knative claims the hosts of DomainMappings by itself
    target: str = ""  # name of the target, whose refusals of plan/support/target_support.py count; empty: any
    target_options: Mapping[str, str] = field(default_factory=dict)
    engines: frozenset[str] | None = None  # that run as processes of the target local; None: not known

    @property
    def is_cluster(self) -> bool:
        return self.target in ("", "kubernetes")

    @property
    def maps_hosts(self) -> bool:
        """Whether hosts of serverless services need DomainMappings, and can have them."""
        return self.domain_mapping and self.host_template != KNATIVE_HOST_TEMPLATE

    def own_image(self, variant: str = "cpu") -> str:
        """Return the image of our containers; variants other than `cpu` add their name to the tag."""
        if self.image != PUBLISHED_IMAGE:
            return self.image
        registry = f"{self.image_registry}/" if self.image_registry else ""
        return f"{registry}{self.image}{'' if variant == 'cpu' else f'-{variant}'}"


@dataclass(frozen=True, slots=True)
class Current:
    """State of what runs: from the target, or `--current FILE`. Empty: the rendered revision gets all traffic."""

    revisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # workload name → revisions, newest first
    traffic: Mapping[str, tuple[Traffic, ...]] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)  # live scale/traffic overrides
    templates: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)  # revision → its pod template
    adapters: Mapping[str, tuple[Adapter, ...]] = field(default_factory=dict)  # by workload


def field_path(component: Component, name: str) -> str:
    """Return a path such as `spec.engine.minReplicas`; with an empty name that of the component."""
    path = "spec" if component.graph else f"spec.{component.role}"  # an InferenceGraph is its router
    return f"{path}.{name}" if name else path


@dataclass
class DecisionLog:
    """Written by the stages, read once by plan(). No decision depends on it."""

    service: Service
    problems: Problems = field(default_factory=Problems)
    decisions: list[Decision] = field(default_factory=list)
    requirements: dict[tuple[str, str], Requirement] = field(default_factory=dict)
    variant: str = ""  # workload name of a canary variant; shown instead of the role, which both variants share

    def decide(self, role: Role | str, topic: str, value: object, reason: str) -> None:
        where = self.variant or role
        self.decisions.append(Decision(f"{where}: {topic}" if where else topic, str(value), reason))

    def for_variant(self, variant: str) -> "DecisionLog":
        """Return the same log, whose decisions carry the workload name of a canary variant."""
        return replace(self, variant=variant)

    def error(self, code: str, path: str, message: str) -> None:
        """Add an error once, even if two components have it."""
        written = self.service.written_path(path)
        if not any((each.code, each.path, each.message) == (code, written, message) for each in self.problems.items):
            self.problems.error(code, self.service.location(path), written, message)

    def warn(self, code: str, path: str, message: str) -> None:
        self.problems.warn(code, self.service.location(path), self.service.written_path(path), message)

    def require(self, requirement: Requirement) -> None:
        """Add a requirement; the first reason for a CRD or flag wins."""
        self.requirements.setdefault((requirement.kind, requirement.name), requirement)
