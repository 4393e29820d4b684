"""Bringing the control process back when it has died: the gateway lives on, and somebody has to start it again."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from pilotlight.gateway.detached import start_detached
from pilotlight.gateway.logs import log

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0
SETTLED_S: Final = 30.0  # whoever stayed this long is not one that dies at every start


def pause(attempt: int) -> float:
    """1, 2, 4 … 30 seconds before the attempt, counted from 0."""
    return min(FIRST_S * (1 << min(attempt, 10)), LONGEST_S)


class Respawn:
    """Nothing ticks while the control process is connected, or where no command is known."""

    def __init__(self, command: Sequence[str], start: Callable[[Sequence[str]], object] | None = None) -> None:
        self._command = tuple(command)
        self._start = start or self._begin
        self._begun: dict[int, list[int]] = {}  # pids of those started here, each with its status once it has ended
        self._attempt = 0
        self._found_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def found(self, pid: int = 0) -> None:
        """`pid` is who came, 0 where nobody can tell. Another one that was started here is ended: it has not looked yet
        whether its place is taken, and would have it as soon as who came has ended."""
        self.cancel()
        self._found_at = asyncio.get_running_loop().time()
        for other, status in self._begun.items():
            if pid and other != pid and not status:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)

    def lost(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._found_at >= SETTLED_S:
            self._attempt = 0
        if self._command:
            self._timer = loop.call_later(pause(self._attempt), self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        """One too many does no harm: it gives way to another that it finds alive, and `found` ends it before that."""
        self._attempt += 1
        self._timer = asyncio.get_running_loop().call_later(pause(self._attempt), self._fire)
        log("control.respawn", "the control process is gone; starting it again", attempt=self._attempt)
        try:
            self._start(self._command)
        except OSError as error:
            log("control.respawn_failed", f"{self._command[0]}: {error}", level="ERROR")

    def _begin(self, words: Sequence[str]) -> None:
        self._begun = {pid: status for pid, status in self._begun.items() if not status}
        status: list[int] = []
        self._begun[start_detached(words, None, status.append)] = status
