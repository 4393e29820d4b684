"""Kill processes of a home without a record: their supervisor died between start and record."""

import asyncio
import os
import signal
from collections.abc import Container
from contextlib import suppress
from typing import Final

from pilotlight.targets.local.home import Home
from pilotlight.targets.local.supervisor.process import replica_processes

# /proc/PID/environ is empty during exec, so a process that is just starting is found only by a later scan.
SCAN_DELAYS_S: Final = (0.1, 0.5, 2.0, 10.0)


class OrphanReaper:
    """`known` are the ids of supervised replicas."""

    def __init__(self, home: Home, known: Container[str]) -> None:
        self._home, self._known = home, known
        self._timers: list[asyncio.TimerHandle] = []

    def kill(self) -> None:
        """Scan now and again after each of SCAN_DELAYS_S; call once living replicas are adopted."""
        self._scan()
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(seconds, self._scan) for seconds in SCAN_DELAYS_S]

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _scan(self) -> None:
        for pid, replica in replica_processes(self._home):
            if replica not in self._known:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
