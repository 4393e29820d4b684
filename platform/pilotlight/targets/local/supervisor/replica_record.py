"""Launch request, record and crash backoff of a replica. `Replica` is also the stored format.

The backoff is the kubelet's CrashLoopBackOff with other constants: at once after the first failure, then 1 s, doubling
up to 30 s. There is no image to pull, and a request may wait for the next start. Failures count per revision; time in
which a replica was ready makes up for them.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import Struct

from pilotlight.errors import PlatformError
from pilotlight.targets.local.manifests.service_spec_types import Probe, RevisionSpec, SecretVariables

Json = Any
State = Literal[
    "waiting", "pending", "starting", "ready", "unready", "parking", "parked", "waking", "draining", "exited"
]
PARKED_STATES: Final = ("parking", "parked")  # the process runs without GPU and without traffic
BASE_S: Final = 1.0
CAP_S: Final = 30.0
HEALTHY_S: Final = 10.0  # an exit after this long ready is no failure of the revision
DECAY_S: Final = 2.0  # this long ready makes up for one earlier failure
START_INTERVAL_S: Final = 1.0  # between starts after exits that are no failures, such as with status 0


@dataclass(frozen=True, slots=True)
class Launch:
    """Process of a revision to start. `replica` is an id that is never used again."""

    replica: str
    revision: RevisionSpec
    extra_env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # values of the service's own Secret, by key

    def secret_values(self, references: SecretVariables) -> dict[str, str]:
        """Return variables with their values. Raise PlatformError for one that was not set."""
        for variable, service, key in references:
            if key not in self.secrets:
                reason = "its value was set at the start, before this control process started"
                raise PlatformError(f"{variable} of {service}: {reason}; run platformctl microservice start again")
        return {variable: self.secrets[key] for variable, _, key in references}


class Checks(Struct, frozen=True):
    """Probes and limits of a process, stored with it for the supervisor that adopts it. Ports are the process's own."""

    readiness: Probe
    startup: Probe | None = None
    liveness: Probe | None = None
    start_budget_s: float = 600.0
    memory_limit: int | None = None
    grace_s: float = 300.0  # termination grace period
    predictor: bool = True  # serves /status
    host: str = "127.0.0.1"  # of all ports, or `unix:FOLDER`


class Parking(Struct, frozen=True):
    """How a replica leaves its GPU and stays. Its CUDA context may leave after the method's own part, by the driver."""

    method: Literal["", "predictor", "engine", "driver"] = ""
    engine: str = ""  # name in engine_programs.yaml, of the method `engine`
    path: str = ""  # of the known request, which it must answer after a wake as before; empty: OpenAI's, if it has it
    body: str = ""
    model_bytes: int = 0  # as far as its models are pinned


class Replica(Struct, frozen=True):
    """Record of one replica. `exit_code` and `signal` are set after the exit, if known.

    waiting → pending → starting → ready ⇄ unready → draining → exited; `reason` is why it is not ready or has ended.
    Pending: handed to a daemon or a queue that has not started it, or its model is being copied.
    With parking: ready → parking → parked → waking → ready; `reason` is what it waits for before it is ready again.
    Waking: it has its GPUs, and its memory is on the way back. Skipped if only its models wake, with the first request.
    """

    id: str
    namespace: str
    service: str
    workload: str
    revision: str
    checks: Checks
    state: State = "starting"
    pid: int = 0  # of the server, or of a client program that stands for it; 0: none, or not yet known
    boot_id: str = ""
    start_ticks: int = 0
    port: int = 0  # HTTP
    grpc_port: int = 0
    gpus: tuple[int | str, ...] = ()
    gpu_memory: int = 0  # bytes of each GPU that it may use; 0: all
    log: str = ""
    started_at: str = ""  # UTC, RFC 3339
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    crashed: bool = False  # exited without a stop request
    forked: bool = False  # by a pilot light
    parking: Parking = Parking()
    checkpointed: bool = False  # by the driver: no process of it has a CUDA context
    discarded: bool = False  # its engine keeps no weights in host memory while it is parked
    known_answer: str = ""  # digest of its answer to the known request; empty: its wakes are not verified
    wake_s: float = 0.0  # that its last wake took
    unparkable: str = ""  # why it was ended instead of parked
    parks_never: bool = False  # nor will another replica of its revision
    wake_failure: str = ""  # why it was ended instead of made ready again
    context_kept: str = ""  # why the driver cannot take its CUDA context while it is parked
    parked_at: float = 0.0  # seconds since the epoch
    parked_bytes: int = 0  # host memory held while parked
    swap_s: float | None = None  # that its last parking and a wake took; None: it was not parked yet
    launcher: str = "local"
    handle: str = ""  # what the launcher finds it by: name of a container, id of a job, port of an engine
    node: str = ""  # that runs it; empty: this machine
    status: Mapping[str, Json] = {}  # last /status of the predictor: state, reason, progress, phases

    @property
    def host(self) -> str:
        return self.checks.host

    @property
    def waits_for_gpu(self) -> bool:
        """Whether it waits for GPUs before it can start or be ready again."""
        return self.state in ("waiting", "parked") and bool(self.reason)


class Usage(Struct, frozen=True):
    """Resource usage of a process and its descendants.

    Of `resident_bytes`, `unreclaimable_bytes` are not pages of files (libraries, mapped weights), which the kernel
    reads again when it needs their memory, unless they are locked.
    """

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    unreclaimable_bytes: int = 0


def is_termination(replica: Replica) -> bool:
    """Whether an exited replica ended with status 0 or by SIGTERM, which is no crash even if we did not stop it."""
    return replica.exit_code == 0 or replica.signal == signal.SIGTERM


def failure_count(failures: int, ready_s: float | None, terminated: bool) -> int:
    """Return the failures in a row after an exit; `ready_s`: how long the replica was ready, None: it never was."""
    if ready_s is None:
        return failures + 1
    if ready_s >= HEALTHY_S:
        return 0
    remaining = max(0, failures - int(ready_s / DECAY_S))
    return remaining if terminated else remaining + 1


def crash_backoff(failures: int) -> float:
    """Return the seconds from an exit to the next start: 0, 1, 2, 4 … 30."""
    return float(min(CAP_S, BASE_S * 2 ** min(failures - 2, 30))) if failures > 1 else 0.0
