"""Periodic reports of the data plane's counters: every second while there are requests."""

import asyncio
from collections.abc import Callable
from typing import Final

from pilotlight.gateway.messages import Report
from pilotlight.gateway.plane import DataPlane

INTERVAL_S: Final = 1.0


class Reporter:
    """Passes every report to `on_report` and non-empty ones to `send`; no timer runs while there are no requests."""

    def __init__(self, plane: DataPlane, on_report: Callable[[Report], None], send: Callable[[Report], None]) -> None:
        self._plane, self._on_report, self._send = plane, on_report, send
        self._timer: asyncio.TimerHandle | None = None
        plane.on_busy = self._start_timer

    def report(self) -> bool:
        """Report now; return whether there were requests since the last report."""
        report = self._plane.report(self._plane.clock())
        self._on_report(report)
        if report.backends:
            self._send(report)
        return bool(report.backends)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.report():
            self._start_timer()
