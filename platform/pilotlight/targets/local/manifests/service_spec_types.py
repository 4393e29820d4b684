"""Specification of services as the embedded target reads it from manifests: workloads and revisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pilotlight.contract import ENV_DYNAMIC_ADAPTERS, ENV_MICROSERVICE, ENV_PARK_MEMORY, is_predictor_image
from pilotlight.k8s.adapters import Adapter
from pilotlight.k8s.model_pins import ModelPin
from pilotlight.targets.local.scaling.types import Scaling
from pilotlight.targets.target import Share

Mode = Literal["serverless", "raw", "stateful"]
Isolation = Literal["", "data", "sandbox"]  # of a process of this machine; empty: it has the rights of the platform


@dataclass(frozen=True, slots=True)
class Probe:
    """Probe with Kubernetes' semantics. `port` is a port of the container; `path` is of HTTP only."""

    path: str
    port: int
    period_s: float = 10.0
    timeout_s: float = 1.0
    failure_threshold: int = 3
    success_threshold: int = 1
    initial_delay_s: float = 0.0
    kind: Literal["http", "tcp"] = "http"


SecretVariables = tuple[tuple[str, str, str], ...]  # variable, Secret and key of values that no document holds


@dataclass(frozen=True, slots=True)
class Mount:
    """Folder or file of the machine at a path of the container."""

    source: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Model that `pilotlight_predictor fetch` puts into a folder of the container before it starts."""

    uri: str
    folder: str
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: SecretVariables = ()


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Container of a replica, or its process. `env` lacks only what the launcher adds: ports, cache, GPUs."""

    name: str
    image: str
    command: tuple[str, ...]  # empty: the predictor
    args: tuple[str, ...]
    env: Mapping[str, str]
    port: int  # container port that receives the service's requests
    gpus: int = 0
    gpu_memory: int | None = None  # bytes of each GPU; 0: as measured, at first the whole GPU; None: always whole ones
    gpu_pinned: bool = False  # it never leaves its GPU for another service
    gpu_residence: float | None = None  # seconds that it stays at least; None: as its swaps cost
    park: bool = False  # pilotlight.dev/park; of our predictor its environment says so
    cpu_request: float = 0.0
    cpu_limit: float | None = None
    memory_limit: int | None = None
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    replica_env: tuple[str, ...] = ()  # variables that hold the replica's own name (fieldRef metadata.name)
    pins: Mapping[str, ModelPin] = field(default_factory=dict)  # by model URI
    mounts: tuple[Mount, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    host_port: int = 0  # port of the machine that `port` gets; 0: any
    host_ip: str = ""  # its address; empty: 127.0.0.1
    options: Mapping[str, str] = field(default_factory=dict)  # of the target
    secret_env: SecretVariables = ()
    isolation: Isolation = ""
    pull_policy: str = ""  # Always, IfNotPresent or Never; empty: as the launcher does

    @property
    def model_digest(self) -> str:
        """Digests of its models, as far as they are pinned."""
        return ",".join(sorted(pin.digest for pin in self.pins.values()))

    @property
    def own_health(self) -> bool:
        """Whether it has the health endpoints of our servers, and a failed model ends it; not of a microservice."""
        return is_predictor_image(self.image) and self.env.get(ENV_MICROSERVICE, "").lower() not in ("1", "true")

    @property
    def has_token(self) -> bool:
        """Whether it may read the control API's token: a predictor that is parked, or gets adapters, by admin calls."""
        own = is_predictor_image(self.image) and not self.isolation
        return own and (self.parks or ENV_DYNAMIC_ADAPTERS in self.env)

    @property
    def parks(self) -> bool:
        """Whether scaling to zero parks the last replica: the process stays, the GPU is freed (docs/how-to/gpus.md)."""
        if is_predictor_image(self.image):
            return not self.isolation and self.env.get(ENV_PARK_MEMORY, "0") not in {"", "0", "0%"}
        return self.park and self.gpus > 0


@dataclass(frozen=True, slots=True)
class RevisionSpec:
    """Immutable revision of a workload. Its name is unique within its namespace."""

    namespace: str
    service: str
    workload: str
    role: str
    name: str
    container: ContainerSpec
    scaling: Scaling
    concurrency: int = 0
    timeout_s: float = 300.0
    progress_deadline_s: float = 600.0
    grace_s: float = 300.0
    target: str = "local"  # name of the launcher that runs its replicas


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Workload of a service. `revision` is the one that the manifests describe; `traffic` may name older ones.

    `surge` and `unavailable` are maxSurge and maxUnavailable of a raw workload's rolling update; both 0: Recreate.
    """

    name: str
    role: str
    mode: Mode
    revision: RevisionSpec
    traffic: tuple[Share, ...]
    surge: int = 1
    unavailable: int = 0


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Service. `entry` are the workloads that receive its requests, with weights; usually one with 100."""

    namespace: str
    name: str
    workloads: tuple[WorkloadSpec, ...]
    entry: tuple[tuple[str, int], ...]
    hosts: tuple[str, ...] = ()
    access: Mapping[str, str] = field(default_factory=dict)  # pilotlight.dev/auth-* and rate-limit annotations
    exposed: bool = True  # by the gateway; else only who knows a replica's address can call it
    models: tuple[str, ...] = ()  # names of its model behind /v1
    logging: Mapping[str, str] = field(default_factory=dict)  # annotations of request log and audit
    adapters: tuple[Adapter, ...] = ()

    @property
    def target(self) -> str:
        return next((workload.revision.target for workload in self.workloads), "local")

    def workload(self, name: str) -> WorkloadSpec:
        return next(workload for workload in self.workloads if workload.name == name)
