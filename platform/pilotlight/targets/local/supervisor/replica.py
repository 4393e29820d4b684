"""What the supervisor is told to start and what it tells of it. A `Replica` is also what the store keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from pilotlight.targets.local.model import Probe, RevisionSpec

Json = Any
State = Literal["waiting", "starting", "ready", "unready", "draining", "exited"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One process of a revision. `replica` is unique over all services and times."""

    replica: str
    revision: RevisionSpec
    extra_env: Mapping[str, str] = field(default_factory=dict)


class Checks(Struct, frozen=True):
    """How the process is judged, kept with it so that a supervisor that adopts it goes on in the same way.

    Ports are those that the process really listens on.
    """

    readiness: Probe
    startup: Probe | None = None
    liveness: Probe | None = None
    start_budget_s: float = 600.0
    memory_limit: int | None = None
    grace_s: float = 300.0  # to end in, when no better word is given
    predictor: bool = True  # it answers /status


class Replica(Struct, frozen=True):
    """One process over its life. `exit_code` and `signal` are set once it has ended, as far as anybody knows them.

    waiting → starting → ready ⇄ unready → draining → exited; `reason` says why it is not ready, or why it ended.
    """

    id: str
    namespace: str
    service: str
    workload: str
    revision: str
    checks: Checks
    state: State = "starting"
    pid: int = 0  # 0: not yet known, a few milliseconds after the launch
    boot_id: str = ""
    start_ticks: int = 0
    port: int = 0  # HTTP
    grpc_port: int = 0
    metrics_port: int = 0
    gpus: tuple[int | str, ...] = ()
    log: str = ""
    started_at: str = ""  # UTC, RFC 3339
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    crashed: bool = False  # it ended though nobody had asked it to
    forked: bool = False  # by a pilot light
    status: Mapping[str, Json] = {}  # what the predictor's /status said last: state, reason, progress, phases


class Usage(Struct, frozen=True):
    """Of the process and those that it started."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
