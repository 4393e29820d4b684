"""Ends processes of a home that no record knows: their supervisor died between their start and the note of it."""

import asyncio
import os
import signal
from collections.abc import Container
from contextlib import suppress
from typing import Final

from pilotlight.targets.local.home import Home
from pilotlight.targets.local.supervisor.process import marked

# A process has no environment while it begins its program, so one that was just being started is seen only later.
LOOKS_S: Final = (0.1, 0.5, 2.0, 10.0)


class Orphans:
    """`known` are the ids of replicas that somebody watches."""

    def __init__(self, home: Home, known: Container[str]) -> None:
        self._home, self._known = home, known
        self._looks: list[asyncio.TimerHandle] = []

    def end(self) -> None:
        """Once the living replicas are known: at once, and again while some may still come to light."""
        self._end()
        loop = asyncio.get_running_loop()
        self._looks = [loop.call_later(seconds, self._end) for seconds in LOOKS_S]

    def close(self) -> None:
        for look in self._looks:
            look.cancel()

    def _end(self) -> None:
        """A shim goes with its replica: nobody is left who would want to know."""
        for pid, replica in marked(self._home):
            if replica not in self._known:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
