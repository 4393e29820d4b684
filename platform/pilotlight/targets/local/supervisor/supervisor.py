"""Starts replicas, watches them, ends them, and takes over those that a supervisor before it has left.

Called from one event loop; every call returns at once, and `on_change` tells what comes of it.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.local.home import Home
from pilotlight.targets.local.supervisor import environment, reasons, shim
from pilotlight.targets.local.supervisor.giving_way import Wanted, blockers, giving_way
from pilotlight.targets.local.supervisor.gpus import Device, Gpus, find_devices
from pilotlight.targets.local.supervisor.limits import Limits
from pilotlight.targets.local.supervisor.orphans import Orphans
from pilotlight.targets.local.supervisor.pilot import PilotLights
from pilotlight.targets.local.supervisor.process import Identity, boot_id, usage
from pilotlight.targets.local.supervisor.replica import Launch, Replica, Usage
from pilotlight.targets.local.supervisor.rotation import prune
from pilotlight.targets.local.supervisor.running import Running
from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.targets.local.supervisor.spawning import Spawner
from pilotlight.targets.local.supervisor.tending import Tending

PORT_TRIES: Final = 5


class Supervisor:
    """All replicas of one home. `replicas` are those that have not exited."""

    def __init__(
        self,
        home: Home,
        on_change: Callable[[Replica], None],
        gateway_url: str,
        pilot: PilotLights | None = None,
        python: str = sys.executable,
        devices: Callable[[], Sequence[Device]] = find_devices,
    ) -> None:
        self._home, self._tell = home, on_change
        self._pilot = pilot
        self._gpus = Gpus(devices)
        self._turns = count(1)
        self._running: dict[str, Running] = {}
        self._none_left = asyncio.Event()
        self._limits = Limits(home)
        self._spawner = Spawner(home, gateway_url, pilot, python, self._forget)
        self._orphans = Orphans(home, self._running)
        self._tending = Tending(self._running, self._limits, home.process_logs)

    @property
    def limits(self) -> str:
        """How limits are kept on this machine: `cgroup v2`, `cgroup v1` or `watchdog`."""
        return self._limits.name

    def replicas(self) -> Sequence[Replica]:
        return [running.record for running in self._running.values()]

    def usage(self, replica_id: str) -> Usage:
        pid = self._find(replica_id).record.pid
        return usage(pid) if pid else Usage()

    def launch(self, launch: Launch) -> Replica:
        """Raises PlatformError for what cannot run here. The state is `starting`, or `waiting` for a GPU."""
        if launch.replica in self._running:
            raise PlatformError(f"replica = {launch.replica} runs already; every start needs an id of its own")
        self._spawner.command(launch)
        running = self._take_on(_record(launch, self._home), launch)
        running.quiet = True  # the caller sees what is returned
        try:
            self._try(running)
        finally:
            running.quiet = False
        return running.record

    def drain(self, replica_id: str, grace_s: float) -> None:
        """SIGTERM; SIGKILL when it still runs after that time."""
        running = self._find(replica_id)
        running.asked = True
        if running.record.state == "waiting":
            self._forget(running, Exit(), "ended before it could start")
        else:
            running.drain(grace_s)

    def park(self, replica_id: str) -> None:
        """Its predictor gives the GPU up and the process stays; one that cannot is ended as `drain` ends it."""
        token = self._home.token
        self._find(replica_id).park(token.read_text().strip() if token.exists() else "", self._parked)

    def _parked(self, running: Running, refused: str) -> None:
        if refused:
            running.asked = True
            running.update(unparkable=refused)
            running.drain(running.record.checks.grace_s)
        elif running.record.state == "parked" and self._gpus.release(running.record.id):
            self._serve_waiting()  # it has not been called back at the same moment

    def giving_way(self, replica_id: str, idle: Collection[str], retiring: Collection[str]) -> list[str]:
        """Which of the idle ones would have to park so that this one need not wait for its GPUs any more."""
        running = self._find(replica_id)
        number = running.launch.revision.container.gpus if running.launch is not None else 0
        own = running.record.gpus if running.record.state == "parked" else ()
        return giving_way(Wanted(own, number), self._gpus.held, self._gpus.count, idle, self._leaving(retiring))

    def _leaving(self, retiring: Collection[str]) -> set[str]:
        """Their GPUs will be free in a moment."""
        found = {record.id for record in self.replicas() if record.state in ("parking", "draining")}
        return found | set(retiring)

    def move(self, replica_id: str, retiring: Collection[str]) -> bool:
        """Ends a parked one that others keep from its GPUs while there are free ones, where it can be started anew."""
        record = self._find(replica_id).record
        held = {name: holder for name, holder in self._gpus.held.items() if name not in self._leaving(retiring)}
        stuck = record.state == "parked" and bool(blockers(record.gpus, held))
        if not stuck or self._gpus.free < len(record.gpus):
            return False
        self.drain(replica_id, record.checks.grace_s)
        return True

    def call_back(self, replica_id: str) -> None:
        """A parked one serves again once its GPUs are free; its models wake with the first request."""
        running = self._find(replica_id)
        if running.record.state == "parking":
            running.serve_again()  # it has its GPUs still
        if running.record.state != "parked":
            return
        reason = self._gpus.take_again(replica_id, _service(running.record), running.record.gpus)
        if reason:
            self._queue_up(running)
            running.update(reason=reason)
        else:
            running.waits_since = 0
            running.serve_again()

    def let_be(self, replica_id: str) -> None:
        """Nobody wants a parked one back any more."""
        running = self._find(replica_id)
        if running.record.state == "parked":
            running.waits_since = 0
            running.update(reason="")

    def _queue_up(self, running: Running) -> None:
        running.waits_since = running.waits_since or next(self._turns)

    def kill(self, replica_id: str) -> None:
        running = self._find(replica_id)
        running.asked = True
        if running.record.state == "waiting":
            self._forget(running, Exit(), "ended before it could start")
        else:
            running.kill("killed when asked to")

    def adopt(self, replicas: Sequence[Replica]) -> None:
        """Goes on with the living among those that the store remembers; ends processes that no record knows."""
        for record in replicas:
            if record.state == "exited" or record.id in self._running:
                continue
            running = self._take_on(record, None)
            running.asked = record.state == "draining" and not record.reason
            identity = Identity(record.pid, record.boot_id, record.start_ticks)
            if identity.alive:
                if record.state != "parked":
                    self._gpus.hold(record.id, _service(record), record.gpus)
                running.adopt(identity)
                if record.state == "parking":
                    self.park(record.id)  # whether it was told to is unknown; twice is once
            elif reason := _lost(record):
                running.asked = True
                self._forget(running, Exit(), reason)
            else:
                self._ended(running, shim.read_exit(running.exit_file) or Exit())
        self._orphans.end()
        self._limits.sweep(self._running)

    async def close(self, leave_running: bool) -> None:
        """Ends all replicas, or leaves them to the supervisor that comes next."""
        if not leave_running and self._running:
            for running in list(self._running.values()):
                self.drain(running.record.id, running.record.checks.grace_s)
            await self._none_left.wait()
        for running in list(self._running.values()):
            await running.leave()
        self._running.clear()
        self._tending.close()
        self._orphans.close()
        if not leave_running:
            await asyncio.to_thread(self._limits.sweep, ())
        if self._pilot is not None:
            self._pilot.close(leave_running)

    def _find(self, replica_id: str) -> Running:
        if replica_id not in self._running:
            raise NotFound(f"replica {replica_id} does not run here")
        return self._running[replica_id]

    def _take_on(self, record: Replica, launch: Launch | None) -> Running:
        exit_file = self._home.run / f"{record.id}.exit"
        running = Running(record, launch, exit_file, self._limits, self._tell, self._ended)
        self._running[record.id] = running
        self._none_left.clear()
        self._tending.wake()
        return running

    def _try(self, running: Running) -> None:
        """Starts it when the GPUs that it needs are free."""
        assert running.launch is not None
        record, number = running.record, running.launch.revision.container.gpus
        gpus, reason = self._gpus.take(record.id, _service(record), number)
        if reason:
            self._queue_up(running)
            running.update(state="waiting", reason=reason)
            return
        running.waits_since = 0
        running.update(state="starting", reason="", gpus=gpus)
        self._spawner.spawn(running)

    def _ended(self, running: Running, ended: Exit) -> None:
        lines = reasons.tail(running.record.log, running.log_from)
        unlucky = running.record.state == "starting" and not running.asked and reasons.port_was_taken(ended, lines)
        if unlucky and running.launch is not None and running.starts < PORT_TRIES:
            self._spawner.spawn(running)
            return
        self._forget(running, ended, running.why or ("" if running.asked else reasons.describe(ended, lines)))

    def _forget(self, running: Running, ended: Exit, reason: str) -> None:
        """The last word on a replica. What it held goes to those who wait."""
        record = running.record
        running.stop_probing()
        if self._running.pop(record.id, None) is None:
            return  # it was told before, or left to the supervisor that comes next
        if not self._running:
            self._none_left.set()
        running.exit_file.unlink(missing_ok=True)
        running.update(
            state="exited", reason=reason, exit_code=ended.code, signal=ended.signal, crashed=not running.asked
        )
        prune(Path(record.log).parent, self._running)
        if self._gpus.release(record.id):
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        """GPUs have become free: who has waited longest is tried first."""
        for waiting in sorted(self._running.values(), key=lambda running: running.waits_since):
            if waiting.record.state == "waiting":
                self._try(waiting)
            elif waiting.record.waits:
                self.call_back(waiting.record.id)


def _record(launch: Launch, home: Home) -> Replica:
    revision = launch.revision
    return Replica(
        id=launch.replica,
        namespace=revision.namespace,
        service=revision.service,
        workload=revision.workload,
        revision=revision.name,
        checks=environment.checks(launch, environment.Ports(0, 0, 0)),
        log=str(home.logs / revision.namespace / revision.service / f"{launch.replica}.log"),
    )


def _lost(record: Replica) -> str:
    """Why a replica is gone that did nothing wrong; empty: it may have crashed."""
    if not record.pid:
        return "the control process ended before this had started"
    return "the machine was restarted" if record.boot_id != boot_id() else ""


def _service(record: Replica) -> str:
    return f"{record.namespace}/{record.service}"
