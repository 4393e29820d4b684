"""Specification of services as the embedded target reads it from manifests: workloads and revisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pilotlight.contract import ENV_PARK_MEMORY
from pilotlight.k8s.model_pins import ModelPin
from pilotlight.targets.local.scaling.types import Scaling

Mode = Literal["serverless", "raw", "stateful"]


@dataclass(frozen=True, slots=True)
class Probe:
    """HTTP probe with Kubernetes' semantics. `port` is a port of the container."""

    path: str
    port: int
    period_s: float = 10.0
    timeout_s: float = 1.0
    failure_threshold: int = 3
    success_threshold: int = 1
    initial_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Process of a replica. `env` lacks only what the supervisor adds: ports, cache, GPUs."""

    name: str
    image: str
    command: tuple[str, ...]  # empty: the predictor
    args: tuple[str, ...]
    env: Mapping[str, str]
    port: int  # container port that receives the service's requests
    gpus: int = 0
    cpu_request: float = 0.0
    cpu_limit: float | None = None
    memory_limit: int | None = None
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    replica_env: tuple[str, ...] = ()  # variables that hold the replica's own name (fieldRef metadata.name)
    pins: Mapping[str, ModelPin] = field(default_factory=dict)  # by model URI

    @property
    def parks(self) -> bool:
        """Whether scaling to zero parks the last replica: the process stays, the GPU is freed (docs/parking.md)."""
        return self.env.get(ENV_PARK_MEMORY, "0") not in {"", "0", "0%"}


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
class TrafficShare:
    revision: str
    percent: int
    tag: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Workload of a service. `revision` is the one that the manifests describe; `traffic` may name older ones.

    `surge` and `unavailable` are maxSurge and maxUnavailable of a raw workload's rolling update; both 0: Recreate.
    """

    name: str
    role: str
    mode: Mode
    revision: RevisionSpec
    traffic: tuple[TrafficShare, ...]
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

    def workload(self, name: str) -> WorkloadSpec:
        return next(workload for workload in self.workloads if workload.name == name)
