"""Whether a message goes on arriving: what is there of it holds memory, of which all calls together have so much.

exchange.py says when a message begins; its call is ended when the rest takes longer than a client over HTTP may take.
"""

import asyncio
from collections.abc import Callable

from pilotlight_predictor.lane_patience import patience_s


class Arrival:
    """`arrived` gives the bytes that are there of a message, None while none is on its way."""

    __slots__ = ("_arrived", "_began", "_late", "_timer")

    def __init__(self, arrived: Callable[[], int | None], late: Callable[[], None]) -> None:
        self._arrived, self._late = arrived, late
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """The first bytes of a message. One look is enough for many messages, if each of them comes in time."""
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(patience_s(0, 0), self._look)

    def _look(self) -> None:
        loop, arrived = asyncio.get_running_loop(), self._arrived()
        self._timer = None
        if arrived is None:
            return
        left = self._began + patience_s(arrived, 0) - loop.time()
        if left <= 0:
            self._late()
        else:
            self._timer = loop.call_later(left, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
