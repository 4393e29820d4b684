"""Internal model that documents of both API groups are read into. Pure data; plan() decides what it means.

Pod fields stay in Kubernetes' JSON form (`dict`), validated against its field names by the reader and passed through
unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pilotlight.spec.problems import SourceLocation

Json = Any
Group = Literal["ome", "kserve"]
Role = Literal["engine", "decoder", "router", "predictor", "transformer", "explainer"]
ScaleMetric = Literal["cpu", "memory", "concurrency", "rps"]


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference to a runtime or model; `kind` and `group` have their defaults filled in."""

    name: str
    kind: str
    group: str


@dataclass(frozen=True, slots=True)
class KedaConfig:
    """OME's kedaConfig of a service or component."""

    enabled: bool | None = None
    server_address: str = ""
    query: str = ""
    threshold: str = ""
    operator: str = ""
    authentication: Mapping[str, str] = field(default_factory=dict)  # name, kind
    auth_modes: str = ""


@dataclass(frozen=True, slots=True)
class ScalingMetric:
    """One entry of KServe's autoScaling.metrics, or the equivalent of scaleMetric and scaleTarget."""

    kind: Literal["resource", "external", "pod"]
    name: str  # cpu, memory; prometheus, graphite, opentelemetry; or the pod metric's name
    target_type: Literal["Utilization", "AverageValue", "Value"]
    target: str
    query: str = ""
    server_address: str = ""
    authentication: Mapping[str, str] = field(default_factory=dict)
    auth_modes: str = ""
    namespace: str = ""  # of the query, for a multi-tenant server


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """KServe's predictor.model, or a framework predictor read as one."""

    format: str
    format_version: str = ""
    runtime: str = ""
    storage_uri: str = ""
    storage: Mapping[str, Json] = field(default_factory=dict)  # key, path, parameters, schemaPath
    protocol: str = ""
    runtime_version: str = ""
    container: Mapping[str, Json] = field(default_factory=dict)  # inline container fields
    confidential: Mapping[str, Json] = field(default_factory=dict)  # enabled, resourceId
    config: Mapping[str, str] = field(default_factory=dict)  # explainer


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Leader or worker of a multi-node component."""

    pod: Mapping[str, Json] = field(default_factory=dict)
    runner: Mapping[str, Json] | None = None
    size: int = 0
    parallelism: Mapping[str, int] = field(default_factory=dict)  # KServe: pipeline, tensor


@dataclass(frozen=True, slots=True)
class AdapterReference:
    """A LoRA adapter of the service's model, or merged weights. Without a URI it is a FineTunedWeight of that name."""

    name: str
    path: str  # in the document
    uri: str = ""


@dataclass(frozen=True, slots=True)
class Component:
    """One component of a service. None: not set in the document."""

    role: Role
    pod: Mapping[str, Json] = field(default_factory=dict)
    runner: Mapping[str, Json] | None = None
    leader: NodeGroup | None = None
    worker: NodeGroup | None = None
    model: ModelSpec | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    scale_target: int | None = None
    scale_metric: ScaleMetric | None = None
    scale_metric_type: Literal["Utilization", "AverageValue", "Value"] | None = None
    metrics: tuple[ScalingMetric, ...] = ()
    behavior: Mapping[str, Json] = field(default_factory=dict)
    container_concurrency: int | None = None
    timeout_seconds: int | None = None
    canary_traffic_percent: int | None = None
    deployment_strategy: Mapping[str, Json] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    min_available: Json = None
    max_unavailable: Json = None
    keda: KedaConfig | None = None
    config: Mapping[str, str] = field(default_factory=dict)  # router
    graph: Mapping[str, Json] = field(default_factory=dict)  # router of an InferenceGraph: nodes, stepTimeout
    batcher: Mapping[str, Json] | None = None
    logger: Mapping[str, Json] | None = None
    accelerator: Mapping[str, Json] | None = None
    name: str = ""  # KServe: of a predictor variant
    storage_uris: tuple[Mapping[str, str], ...] = ()  # KServe: uri, mountPath
    storage_container: str = ""
    example: Mapping[str, Json] = field(default_factory=dict)  # request that its model must answer before it is ready
    warmup: str = ""  # none: no automatic warm-up


@dataclass(frozen=True, slots=True)
class Service:
    """One InferenceService. `locations` maps paths to source locations, for problems found by later stages.

    Each of `canaries` has `name`, `trafficPercent`, `predictor` (JSON) and `component` (the same as a Component).
    """

    group: Group
    name: str
    namespace: str
    components: Mapping[Role, Component]
    model: Reference | None = None
    adapters: tuple[AdapterReference, ...] = ()
    runtime: Reference | None = None
    keda: KedaConfig | None = None
    accelerator: Mapping[str, Json] | None = None
    canaries: tuple[Mapping[str, Json], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    locations: Mapping[str, SourceLocation] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)  # fields of the document by their paths of later stages
    document: Mapping[str, Json] = field(default_factory=dict)

    @property
    def example(self) -> Mapping[str, Json]:
        """Example request of the model that answers, empty without one."""
        return next((each.example for each in self.components.values() if each.example), {})

    def written_path(self, path: str) -> str:
        """Return a path as the document has it. What is below a role alone, such as minReplicas, has no other name."""
        known = path
        while known and known not in self.written:
            known = known.rpartition(".")[0]
        is_role = known.count(".") == 1
        return self.written[known] + path[len(known) :] if known == path or (known and not is_role) else path

    def location(self, path: str) -> SourceLocation:
        """Return the source location of a path, or of its nearest parent that has one."""
        while path and path not in self.locations:
            path = path.rpartition(".")[0]
        return self.locations.get(path, SourceLocation())


@dataclass(frozen=True, slots=True)
class SupportedFormat:
    """One entry of a runtime's supportedModelFormats."""

    name: str
    version: str = ""
    framework: str = ""
    framework_version: str = ""
    architecture: str = ""
    quantization: str = ""
    auto_select: bool = False
    priority: int = 1
    format_weight: int = 1
    framework_weight: int = 1
    accelerators: Mapping[str, Json] = field(default_factory=dict)
    operator: str = "Equal"  # how `version` compares with the model's: Equal, GreaterThan, GreaterThanOrEqual
    framework_operator: str = "Equal"
    pipeline: Mapping[str, Json] = field(default_factory=dict)  # OME's diffusionPipeline


@dataclass(frozen=True, slots=True)
class Runtime:
    """A (Cluster)ServingRuntime. `is_pilotlight`: our predictor, which fetches models without an init container."""

    name: str
    kind: str
    group: Group
    formats: tuple[SupportedFormat, ...]
    pod: Mapping[str, Json] = field(default_factory=dict)  # with its containers
    engine: Mapping[str, Json] = field(default_factory=dict)  # OME's engineConfig
    decoder: Mapping[str, Json] = field(default_factory=dict)
    router: Mapping[str, Json] = field(default_factory=dict)
    workers: Mapping[str, Json] = field(default_factory=dict)
    size_range: tuple[str, str] | None = None
    protocols: tuple[str, ...] = ()
    disabled: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    origin: str = "built-in"
    is_pilotlight: bool = False
    accelerators: Mapping[str, Json] = field(default_factory=dict)  # OME's acceleratorRequirements
    multi_model: bool = False
    server_type: str = ""  # KServe's annotation serving.kserve.io/server-type
    disaggregation: str = ""  # annotation: how engine and decoder hand over KV caches
    locations: Mapping[str, SourceLocation] = field(
        default_factory=dict, compare=False
    )  # source locations of its paths


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A (Cluster)BaseModel: format, size and storage of the weights."""

    name: str
    kind: str
    format: str
    format_version: str = ""
    framework: str = ""
    framework_version: str = ""
    architecture: str = ""
    quantization: str = ""
    parameter_size: str = ""
    capabilities: tuple[str, ...] = ()
    storage_uri: str = ""
    storage: Mapping[str, Json] = field(default_factory=dict)
    size_bytes: int = 0
    disabled: bool = False
    namespace: str = ""
    origin: str = "built-in"
    pipeline: Mapping[str, Json] = field(default_factory=dict)  # OME's diffusionPipeline
    reasons: tuple[str, ...] = ()  # one sentence for each derived property
    guessed: bool = False  # format and framework were derived from the URI
    configuration: Mapping[str, Json] = field(default_factory=dict)  # OME's modelConfiguration: Hugging Face's config
    max_tokens: int = 0  # of a request and its response; 0: unknown


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What files of a local folder say of a model or an adapter: its config, and the shapes of an adapter's tensors."""

    config: Mapping[str, Json] = field(default_factory=dict)  # config.json, or adapter_config.json
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Runtimes, models and accelerator classes that a plan may choose from. `shadowed`: overridden entries, why."""

    runtimes: tuple[Runtime, ...] = ()
    models: tuple[BaseModel, ...] = ()
    accelerators: tuple[Mapping[str, Json], ...] = ()
    shadowed: tuple[str, ...] = ()
    weights: tuple[Mapping[str, Json], ...] = ()  # OME's FineTunedWeight documents
    caches: tuple[Mapping[str, Json], ...] = ()  # KServe's LocalModelCache and LocalModelNamespaceCache documents
    folders: Mapping[str, ModelFolder] = field(default_factory=dict)  # by local URI: of adapters and their base models
