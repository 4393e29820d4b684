"""The one internal model that documents of either API group are read into. Pure data; plan() decides what it means.

Pod fields stay in Kubernetes' own JSON form (`dict`), validated against its field names by the reader: we pass them
through and never reinterpret them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pilotlight.spec.problems import Place

Json = Any
Group = Literal["ome", "kserve"]
Role = Literal["engine", "decoder", "router", "predictor", "transformer", "explainer"]
ScaleMetric = Literal["cpu", "memory", "concurrency", "rps"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A runtime or model by name. `kind` and `group` as the document says, defaults filled in."""

    name: str
    kind: str
    group: str


@dataclass(frozen=True, slots=True)
class KedaConfig:
    """OME's kedaConfig, on the service or on a component."""

    enabled: bool | None = None
    server_address: str = ""
    query: str = ""
    threshold: str = ""
    operator: str = ""
    authentication: Mapping[str, str] = field(default_factory=dict)  # name, kind
    auth_modes: str = ""


@dataclass(frozen=True, slots=True)
class ScalingMetric:
    """One entry of KServe's autoScaling.metrics, or what a simple scaleMetric/scaleTarget amounts to."""

    kind: Literal["resource", "external", "pod"]
    name: str  # cpu, memory; prometheus, graphite, opentelemetry; or the pod metric's name
    target_type: Literal["Utilization", "AverageValue", "Value"]
    target: str
    query: str = ""
    server_address: str = ""
    authentication: Mapping[str, str] = field(default_factory=dict)
    auth_modes: str = ""
    namespace: str = ""  # of the query, where the server keeps several
    metric_names: tuple[str, ...] = ()  # pod
    operation: str = ""  # pod: how a metric is gathered over time


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """KServe's predictor.model (or a per-framework predictor, read as one)."""

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
class Component:
    """One part of a service. None means: the document does not say."""

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
    batcher: Mapping[str, Json] | None = None
    logger: Mapping[str, Json] | None = None
    accelerator: Mapping[str, Json] | None = None
    name: str = ""  # KServe: of a predictor variant
    storage_uris: tuple[Mapping[str, str], ...] = ()  # KServe: uri, mountPath
    storage_container: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """One InferenceService. `places` finds the file position of a path, for problems that later stages see.

    Each of `canaries` has `name`, `trafficPercent`, `predictor` (as written) and `component` (the same, read).
    """

    group: Group
    name: str
    namespace: str
    components: Mapping[Role, Component]
    model: Reference | None = None
    fine_tuned_weights: tuple[str, ...] = ()
    runtime: Reference | None = None
    keda: KedaConfig | None = None
    accelerator: Mapping[str, Json] | None = None
    canaries: tuple[Mapping[str, Json], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    document: Mapping[str, Json] = field(default_factory=dict)

    @property
    def tuned(self) -> tuple[str, str]:
        """The FineTunedWeight to serve and the path that names it, beside a base model or in its place. Empty: none."""
        if self.model is not None and self.model.kind == "FineTunedWeight":
            return self.model.name, "spec.model.name"
        return next(iter(self.fine_tuned_weights), ""), "spec.model.fineTunedWeights"

    def place(self, path: str) -> Place:
        """Where the path is written, or the nearest parent of it that is."""
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        return self.places.get(path, Place())


@dataclass(frozen=True, slots=True)
class SupportedFormat:
    """One line of a runtime's supportedModelFormats."""

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
    """A (Cluster)ServingRuntime. `ours` is our own predictor: it fetches models itself and needs no init container."""

    name: str
    kind: str
    group: Group
    formats: tuple[SupportedFormat, ...]
    pod: Mapping[str, Json] = field(default_factory=dict)  # containers among its fields
    engine: Mapping[str, Json] = field(default_factory=dict)  # OME's engineConfig and so on, as they are
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
    ours: bool = False
    accelerators: Mapping[str, Json] = field(default_factory=dict)  # OME's acceleratorRequirements
    multi_model: bool = False
    server_type: str = ""  # KServe's annotation serving.kserve.io/server-type
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)  # where its document's paths are written


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A (Cluster)BaseModel: format, size and where the weights are."""

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
    reasons: tuple[str, ...] = ()  # what was derived rather than declared, one sentence each
    guessed: bool = False  # format and framework were told from the address


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Runtimes, models and accelerator classes that a plan may choose from. `shadowed`: what merging left out, why."""

    runtimes: tuple[Runtime, ...] = ()
    models: tuple[BaseModel, ...] = ()
    accelerators: tuple[Mapping[str, Json], ...] = ()
    shadowed: tuple[str, ...] = ()
    weights: tuple[Mapping[str, Json], ...] = ()  # OME's FineTunedWeight documents
