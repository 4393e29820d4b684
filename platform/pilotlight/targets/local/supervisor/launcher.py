"""Interface between the supervisor, which keeps records, probes and timers, and what runs a replica.

`process_launcher.py` runs it as a process of this machine. Others hand it to a daemon or a queue; those may stay
`pending` for long before they start. All calls are made in the event loop and return at once, coroutines excepted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from pilotlight.errors import PlatformError
from pilotlight.targets.local.manifests.service_spec_types import Probe, RevisionSpec
from pilotlight.targets.local.model_snapshots import ModelChanged
from pilotlight.targets.local.process_identity import Identity
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, Usage
from pilotlight.targets.local.supervisor.shim import Exit


class ReplicaAddress(NamedTuple):
    """Where probes, gateway and metrics reach a replica; `ports` and `paths`: as far as they differ from manifests."""

    host: str  # `unix:FOLDER`, 127.0.0.1 or a node
    ports: Mapping[int, int] = {}  # port at the host by container port
    paths: Mapping[str, str] = {}  # of probes, where another program answers than the container's


def located(record: Replica, address: ReplicaAddress) -> Replica:
    """Return the record, whose ports are those of the container, with this address."""

    def port(number: int) -> int:
        return address.ports.get(number, number)

    def probe(probe: Probe | None) -> Probe | None:
        if probe is None:
            return None
        return replace(probe, port=port(probe.port), path=address.paths.get(probe.path, probe.path))

    checks = record.checks
    readiness = probe(checks.readiness) or checks.readiness
    checks = structs.replace(
        checks, host=address.host, readiness=readiness, startup=probe(checks.startup), liveness=probe(checks.liveness)
    )
    return structs.replace(record, checks=checks, port=port(record.port), grpc_port=port(record.grpc_port))


class Ended(NamedTuple):
    """End of a replica. Without a reason, an end that was not requested is explained by exit status and log."""

    exit: Exit = Exit()
    reason: str = ""
    lost: bool = False  # with its machine, node or supervisor: no failure of the revision


NOT_STARTED: Final = Ended(reason="the control process exited before this started", lost=True)


def start_failure(error: Exception) -> str:
    """Return the reason of a start that failed before anything ran."""
    hint = f"; {error.hint}" if isinstance(error, PlatformError) and error.hint else ""
    text = f"{getattr(error, 'strerror', None) or error}{hint}"
    return text if isinstance(error, ModelChanged) else f"could not be started: {text}"


class ProcessObserver(Protocol):
    """Callbacks of a process of this machine."""

    def on_process(self, identity: Identity, forked: bool = False) -> None:
        """Record the process, so that the next supervisor can adopt it."""

    def on_ending(self) -> None:
        """Stop probes and timers: it has ended, and exit status and last output are being collected."""

    def on_exited(self, ended: Ended) -> None:
        """Remove the replica. Called once, at last, and never from within `start` or `adopt`."""


class LaunchObserver(ProcessObserver, Protocol):
    """Callbacks of a launcher for one replica; any may come after `terminate` or `kill`.

    `handle` is what the launcher finds the replica by (container name, job id); empty: as before.
    """

    def on_pending(self, reason: str, handle: str = "") -> None:
        """Set the state `pending`: handed over and not running. Call it in `start` unless `on_started` is."""

    def on_started(self, address: ReplicaAddress, handle: str = "", node: str = "") -> None:
        """Start probing. Called once for each replica, and not for an adopted one that was not `pending`."""


class ReplicaHandle(Protocol):
    """A replica that was started or adopted, also while it is pending."""

    def terminate(self) -> None:
        """Send SIGTERM to the server; cancel it while it is pending."""

    def kill(self) -> None: ...
    def processes(self) -> Sequence[int]:
        """Return the pids of its processes on this machine, the first one first; empty: not known."""

    def usage(self) -> Usage: ...
    def age_s(self) -> float:
        """Return the seconds since the server was started."""

    async def detach(self) -> None:
        """Stop watching and leave it running; an end that is being collected is reported before this returns."""


class Launcher(Protocol):
    """Runs the replicas of one home. Making one has no effects and imports little; `start` is its first use."""

    name: str  # as in `Replica.launcher` and `RevisionSpec.target`
    allocates_gpus: bool  # by the supervisor, from this machine's; otherwise the launcher requests them elsewhere

    def check(self, revision: RevisionSpec) -> None:
        """Raise PlatformError for what it cannot run."""

    def start(self, launch: Launch, record: Replica, observer: LaunchObserver) -> ReplicaHandle:
        """Start a replica on `record.gpus`, with its output in `record.log`. Any exception is a failed start."""

    def adopt(self, record: Replica, observer: LaunchObserver) -> ReplicaHandle | Ended:
        """Continue with a replica of an earlier supervisor, or return how it ended.

        If that takes long to find out, return a handle and report the end to the observer. One in state `draining`
        may not have received its signal: cancel it if it is still pending.
        """

    async def running(self) -> list[str]:
        """Return the replicas of this home, those without a record too. Raise PlatformError if they are not known."""

    async def sweep(self, known: Collection[str]) -> None:
        """End the replicas of this home that are not in `known`, a live collection: replicas start during the call."""

    async def close(self, leave_running: bool) -> None:
        """Release what it holds; all handles are detached, or all replicas have ended and `sweep(())` is due."""
