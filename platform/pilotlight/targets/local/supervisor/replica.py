"""What the supervisor is told to start and what it tells of it. A `Replica` is also what the store keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import Struct

from pilotlight.targets.local.model import Probe, RevisionSpec

Json = Any
State = Literal["waiting", "starting", "ready", "unready", "parking", "parked", "draining", "exited"]
AWAY: Final = ("parking", "parked")  # lives, and serves nobody until it is called back


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
    One that may: ready → parking → parked → ready; `reason` says what it waits for when it was called back.
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
    unparkable: str = ""  # why it could not be parked, and so was ended
    parked_at: float = 0.0  # seconds since the epoch
    parked_bytes: int = 0  # host memory that it keeps while it is parked
    status: Mapping[str, Json] = {}  # what the predictor's /status said last: state, reason, progress, phases

    @property
    def waits(self) -> bool:
        """For GPUs, before it can start or serve again."""
        return self.state in ("waiting", "parked") and bool(self.reason)


class Usage(Struct, frozen=True):
    """Of the process and those that it started."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
