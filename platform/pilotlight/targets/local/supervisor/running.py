"""One process under supervision: what is known of it, and what is done to it, from its start to its end.

Told by the probes (`Followed`) and by the kernel; tells `changed`, and at last `ended`.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.targets.local.supervisor import parking, shim
from pilotlight.targets.local.supervisor.follow import STOPPING, follow, state_of
from pilotlight.targets.local.supervisor.limits import Limits
from pilotlight.targets.local.supervisor.process import ExitWatch, Identity, age_s, boot_id, identify
from pilotlight.targets.local.supervisor.reasons import out_of_memory
from pilotlight.targets.local.supervisor.replica import AWAY, Launch, Replica
from pilotlight.targets.local.supervisor.shim import Exit

Json = Any
REMIND_S: Final = 1.0
FAILED_GRACE_S: Final = 5.0  # for a predictor that has nothing to finish, since it never served


class Running:
    """`launch` is None when another supervisor started it. `asked`: somebody wants it to end."""

    def __init__(
        self,
        record: Replica,
        launch: Launch | None,
        exit_file: Path,
        limits: Limits,
        changed: Callable[[Replica], None],
        ended: Callable[["Running", Exit], None],
    ) -> None:
        self.record, self.launch, self.exit_file = record, launch, exit_file
        self.asked = self.quiet = False
        self.why = record.reason if record.state == "draining" else ""  # of an end that we brought about ourselves
        self.waits_since = 0  # its place among those that wait for GPUs; 0: it does not
        self.starts = 0  # more than one when its port was taken meanwhile
        self.log_from = 0  # where its log began with this start
        self._limits, self._changed, self._ended = limits, changed, ended
        self._confining: asyncio.Future[None] | None = None
        self._shim_pid, self._output = 0, -1
        self._watch: ExitWatch | None = None
        self._probing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._parking: asyncio.Task[None] | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._pending: signal.Signals | None = None  # asked for before the number of the process was known

    def started_by(self, started: shim.Shim) -> None:
        """A shim will tell the number of the process in a moment."""
        self._shim_pid, self._output = started
        asyncio.get_running_loop().add_reader(self._output, self._told_pid)

    def _told_pid(self) -> None:
        self.begin(self._read_pid())

    def _read_pid(self) -> int:
        output, self._output = self._output, -1
        asyncio.get_running_loop().remove_reader(output)
        return shim.read_pid(output)

    def forked_by(self, pid: int) -> None:
        """A pilot light has forked it."""
        self._shim_pid = 0
        self.update(forked=True)
        self.begin(pid)

    def begin(self, pid: int) -> None:
        """The process has this number; 0: it never came to be."""
        identity = identify(pid)
        self.update(pid=pid, boot_id=boot_id(), start_ticks=_ticks(identity))
        if identity is None:
            self._finish()
            return
        self.watch(identity)
        self._confine(pid)
        if self._pending is not None:
            self.send(self._pending)

    def _confine(self, pid: int) -> None:
        """Off the loop: the kernel may take some milliseconds to move a process into a group."""
        if self.launch is not None:
            container, loop = self.launch.revision.container, asyncio.get_running_loop()
            limited = self.record.id, pid, container.memory_limit, container.cpu_limit
            self._confining = loop.run_in_executor(None, self._limits.confine, *limited)

    def watch(self, identity: Identity) -> None:
        self._watch = ExitWatch(identity.pid, self._finish)

    def probe(self, age: float = 0.0) -> None:
        """The number of the process need not be known for that."""
        self._probing = asyncio.get_running_loop().create_task(follow(self.record, self, age))

    def adopt(self, identity: Identity) -> None:
        """It was frozen if its last supervisor died while it froze it; to go on harms nobody."""
        self.watch(identity)
        self.send(signal.SIGCONT)
        if self.record.state == "draining":
            self._kill_in(self.record.checks.grace_s)
            self._probing = asyncio.get_running_loop().create_task(self._remind())
        elif self.record.state not in AWAY:
            self.probe(age_s(identity))

    async def _remind(self) -> None:
        """Its last supervisor may have died before it sent what it had noted; one that drains says so, until it
        answers nobody any more."""
        if not self.record.checks.predictor:
            return
        state = await state_of(self.record.checks)
        while not state:
            await asyncio.sleep(REMIND_S)
            state = await state_of(self.record.checks)
        if state != STOPPING:
            self.send(signal.SIGTERM)

    def update(self, **fields: Any) -> None:
        record = replace(self.record, **fields)
        if record != self.record:
            self.record = record
            if not self.quiet:
                self._changed(record)

    def drain(self, grace_s: float, reason: str = "") -> None:
        """Asked once: a second SIGTERM would tell a predictor to drop what it has. Asked again, only time shortens."""
        if self.record.state != "draining":
            self.stop_probing()
            self.update(state="draining", reason=reason)
            self.send(signal.SIGTERM)
        self._kill_in(grace_s)

    def park(self, token: str, done: Callable[["Running", str], None]) -> None:
        """`done` hears why it is not parked; nothing if it is."""
        self.stop_probing()
        self.update(state="parking", reason="")
        self._parking = asyncio.get_running_loop().create_task(self._park(token, done))

    async def _park(self, token: str, done: Callable[["Running", str], None]) -> None:
        outcome = await parking.park(self.record.port, token)
        self._parking = None
        if not outcome.refused:
            self.update(state="parked", parked_at=time.time(), parked_bytes=outcome.kept_bytes)
        done(self, outcome.refused)

    def serve_again(self) -> None:
        """Also while it is being parked: its predictor may go on with that, and wakes with the first request."""
        self.stop_probing()
        self.update(state="ready", reason="")
        self.probe(age_s(Identity(self.record.pid, self.record.boot_id, self.record.start_ticks)))

    def kill(self, why: str = "") -> None:
        self.why = self.why or why
        self.stop_probing()
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        if self._watch is not None:
            self._watch.send(number)
        else:
            self._pending = number

    def _kill_in(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + grace_s
        if self._killer is not None:
            at = min(at, self._killer.when())
            self._killer.cancel()
        self._killer = loop.call_at(at, self.send, signal.SIGKILL)

    def became_ready(self) -> None:
        self.update(state="ready", reason="")

    def became_unready(self, reason: str) -> None:
        self.update(state="unready", reason=reason)

    def learned(self, status: Mapping[str, Json]) -> None:
        self.update(status=status)

    def failed_to_start(self, reason: str) -> None:
        self.why = reason
        self.drain(FAILED_GRACE_S, reason)

    def hung(self, reason: str) -> None:
        self.kill(reason)

    def _finish(self) -> None:
        self.stop_probing()
        if self._killer is not None:
            self._killer.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        ended = await shim.settle(self._shim_pid, self.exit_file)
        if self._confining is not None:
            await self._confining
        if await asyncio.to_thread(self._limits.finish, self.record.id):
            self.why = self.why or out_of_memory(self.record.checks.memory_limit)
        self._watch, self._shim_pid, self._killer, self._pending = None, 0, None, None
        self._ended(self, ended)

    def stop_probing(self) -> None:
        if self._parking is not None:
            self._parking.cancel()
            self._parking = None
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None

    async def leave(self) -> None:
        """Stops watching and lets it run."""
        self.stop_probing()
        if self._killer is not None:
            self._killer.cancel()
        if self._watch is not None:
            self._watch.close()
        if self._output >= 0:
            self._read_pid()
        if self._ending is not None:
            await self._ending


def _ticks(identity: Identity | None) -> int:
    return identity.start_ticks if identity else 0
