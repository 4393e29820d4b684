"""What the embedded target makes of manifests: services, their workloads, and revisions that can be started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pilotlight.contract import ENV_PARK_MEMORY
from pilotlight.targets.local.scaling.model import Scaling

Mode = Literal["serverless", "raw", "stateful"]


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP probe with Kubernetes' meaning of its numbers. `port` is one of the container's."""

    path: str
    port: int
    period_s: float = 10.0
    timeout_s: float = 1.0
    failure_threshold: int = 3
    success_threshold: int = 1
    initial_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Container:
    """What is started. `env` is complete but for what the supervisor substitutes: ports, cache, GPUs."""

    name: str
    image: str
    command: tuple[str, ...]  # empty: the predictor
    args: tuple[str, ...]
    env: Mapping[str, str]
    port: int  # that the service's requests go to, as the manifest numbers it
    gpus: int = 0
    cpu_request: float = 0.0
    cpu_limit: float | None = None
    memory_limit: int | None = None
    memory_request: int = 0
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    replica_env: tuple[str, ...] = ()  # variables that hold the replica's own name (fieldRef metadata.name)

    @property
    def parks(self) -> bool:
        """At zero its last replica keeps its process and gives the GPU up (docs/parking.md)."""
        return self.env.get(ENV_PARK_MEMORY, "0") not in {"", "0", "0%"}


@dataclass(frozen=True, slots=True)
class RevisionSpec:
    """One immutable revision of one workload. Its name is unique within its namespace."""

    namespace: str
    service: str
    workload: str
    role: str
    name: str
    container: Container
    scaling: Scaling
    concurrency: int = 0
    timeout_s: float = 300.0
    progress_deadline_s: float = 600.0
    grace_s: float = 300.0


@dataclass(frozen=True, slots=True)
class TrafficShare:
    revision: str
    percent: int
    tag: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """`revision` is the one that the manifests describe; older ones get what `traffic` says of them.

    Between the old and the new revision of a raw workload: `surge` more than wanted may run, `unavailable` fewer;
    both 0: the old one ends before the new one starts.
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
    """`entry` are the workloads that the service's own requests go to, with their weights; usually one with 100."""

    namespace: str
    name: str
    workloads: tuple[WorkloadSpec, ...]
    entry: tuple[tuple[str, int], ...]
    hosts: tuple[str, ...] = ()
    access: Mapping[str, str] = field(default_factory=dict)  # pilotlight.dev/auth-* and rate-limit annotations

    def workload(self, name: str) -> WorkloadSpec:
        return next(found for found in self.workloads if found.name == name)
