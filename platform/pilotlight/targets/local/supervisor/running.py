"""One process under supervision: what is known of it, and what is done to it, from its start to its end.

Told by the probes (`Followed`) and by the kernel; tells `changed`, and at last `ended`.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.targets.local.supervisor import shim
from pilotlight.targets.local.supervisor.follow import follow
from pilotlight.targets.local.supervisor.process import ExitWatch, Identity, age_s, identify
from pilotlight.targets.local.supervisor.replica import Launch, Replica
from pilotlight.targets.local.supervisor.shim import Exit

Json = Any
FAILED_GRACE_S: Final = 5.0  # for a predictor that has nothing to finish, since it never served


class Running:
    """`launch` is None when another supervisor started it. `asked`: somebody wants it to end."""

    def __init__(
        self,
        record: Replica,
        launch: Launch | None,
        exit_file: Path,
        changed: Callable[[Replica], None],
        ended: Callable[["Running", Exit], None],
    ) -> None:
        self.record, self.launch, self.exit_file = record, launch, exit_file
        self.asked = self.quiet = False
        self.why = ""  # the reason of an end that we brought about ourselves
        self.starts = 0  # more than one when its port was taken meanwhile
        self.log_from = 0  # where its log began with this start
        self._changed, self._ended = changed, ended
        self._shim_pid = 0
        self._watch: ExitWatch | None = None
        self._probing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._pending: signal.Signals | None = None  # asked for before the number of the process was known

    def started_by(self, started: shim.Shim) -> None:
        """A shim will tell the number of the process in a moment; it can be asked whether it is ready before that."""
        self._shim_pid = started.pid
        loop = asyncio.get_running_loop()

        def told() -> None:
            loop.remove_reader(started.output)
            self.begin(shim.read_pid(started.output))

        loop.add_reader(started.output, told)
        self.probe()

    def begin(self, pid: int) -> None:
        """The process has this number; 0: it never came to be."""
        identity = identify(pid)
        self.update(pid=pid, boot_id=identity.boot_id if identity else "", start_ticks=_ticks(identity))
        if identity is None:
            self._finish()
            return
        self.watch(identity)
        if self._pending is not None:
            self.send(self._pending)

    def watch(self, identity: Identity) -> None:
        self._watch = ExitWatch(identity.pid, self._finish)

    def probe(self, age: float = 0.0) -> None:
        self._probing = asyncio.get_running_loop().create_task(follow(self.record, self, age))

    def adopt(self, identity: Identity) -> None:
        """It was frozen if its last supervisor died while it froze it; to go on harms nobody."""
        self.watch(identity)
        self.send(signal.SIGCONT)
        if self.record.state != "draining":
            self.probe(age_s(identity))

    def update(self, **fields: Any) -> None:
        record = replace(self.record, **fields)
        if record != self.record:
            self.record = record
            if not self.quiet:
                self._changed(record)

    def drain(self, grace_s: float, reason: str = "") -> None:
        """Asked once: a second SIGTERM would tell a predictor to drop what it has. Asked again, only time shortens."""
        if self.record.state != "draining":
            self._stop_probing()
            self.update(state="draining", reason=reason)
            self.send(signal.SIGTERM)
        self._kill_in(grace_s)

    def kill(self, why: str = "") -> None:
        self.why = self.why or why
        self._stop_probing()
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
        self._stop_probing()
        if self._killer is not None:
            self._killer.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        ended = await shim.settle(self._shim_pid, self.exit_file)
        self._watch, self._shim_pid, self._killer, self._pending = None, 0, None, None
        self._ended(self, ended)

    def _stop_probing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None

    async def leave(self) -> None:
        """Stops watching and lets it run."""
        self._stop_probing()
        if self._killer is not None:
            self._killer.cancel()
        if self._watch is not None:
            self._watch.close()
        if self._ending is not None:
            await self._ending


def _ticks(identity: Identity | None) -> int:
    return identity.start_ticks if identity else 0
