"""Timeout of messages that arrive slowly, as for HTTP request bodies.

A partial message occupies bytes of the shared in-flight budget, so a stalled message ends its call.
"""

import asyncio
from collections.abc import Callable

from pilotlight_predictor.lane_patience import timeout_s


class ArrivalTimer:
    """Call `late` when a message stalls. `received` returns its bytes so far, or None if no message is arriving."""

    __slots__ = ("_late", "_received", "_started_at", "_timer")

    def __init__(self, received: Callable[[], int | None], late: Callable[[], None]) -> None:
        self._received, self._late = received, late
        self._started_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def message_started(self) -> None:
        """Record the first bytes of a message. The running timer serves all later messages that arrive in time."""
        loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(timeout_s(0, 0), self._check)

    def _check(self) -> None:
        loop, received = asyncio.get_running_loop(), self._received()
        self._timer = None
        if received is None:
            return
        left = self._started_at + timeout_s(received, 0) - loop.time()
        if left <= 0:
            self._late()
        else:
            self._timer = loop.call_later(left, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
