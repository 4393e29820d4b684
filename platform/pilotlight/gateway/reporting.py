"""What the data plane counted, told once a second while anything happens, and kept for whoever scrapes."""

import asyncio
from collections.abc import Callable
from typing import Final

from pilotlight.gateway.messages import Report
from pilotlight.gateway.plane import Plane

INTERVAL_S: Final = 1.0


class Reporter:
    """Sleeps while nothing happens: the plane says when that ends. `say` gets no report that is empty."""

    def __init__(self, plane: Plane, keep: Callable[[Report], None], say: Callable[[Report], None]) -> None:
        self._plane, self._keep, self._say = plane, keep, say
        self._timer: asyncio.TimerHandle | None = None
        plane.on_busy = self._begin

    def report(self) -> bool:
        """Whether there was anything to tell since the last time."""
        report = self._plane.report(self._plane.clock())
        self._keep(report)
        if report.backends:
            self._say(report)
        return bool(report.backends)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.report():
            self._begin()
