"""Bringing the control process back when it has died: the gateway lives on, and somebody has to start it again."""

import asyncio
from collections.abc import Callable, Sequence
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
        self._start = start or (lambda words: start_detached(words, None))
        self._attempt = 0
        self._found_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def found(self) -> None:
        self.cancel()
        self._found_at = asyncio.get_running_loop().time()

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
        """A control process that finds another one alive gives way by itself, so one too many does no harm."""
        self._attempt += 1
        self._timer = asyncio.get_running_loop().call_later(pause(self._attempt), self._fire)
        log("control.respawn", "the control process is gone; starting it again", attempt=self._attempt)
        try:
            self._start(self._command)
        except OSError as error:
            log("control.respawn_failed", f"{self._command[0]}: {error}", level="ERROR")
