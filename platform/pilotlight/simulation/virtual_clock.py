"""Virtual time: events in order of their time, and as much of an event loop as the gateway's queue needs."""

import asyncio
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast


class Timer:
    """A call at a virtual time, like asyncio.TimerHandle."""

    __slots__ = ("_arguments", "_callback", "cancelled")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._callback, self._arguments, self.cancelled = callback, arguments, False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self, now: float, _: Any) -> None:
        if not self.cancelled:
            self._callback(*self._arguments)


Callback = Callable[[float, Any], None]  # the time, and the argument of the event


class VirtualClock:
    """Events by time. `at` is for the simulation's own, `call_later` for code of the gateway."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heap: list[tuple[float, int, Callback, Any]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.now

    def at(self, when: float, callback: Callback, argument: Any = None) -> None:
        heappush(self.heap, (when, next(self._numbers), callback, argument))

    def call_later(self, delay: float, callback: Callable[..., Any], *arguments: Any) -> Timer:
        timer = Timer(callback, arguments)
        self.at(self.now + delay, timer.run)
        return timer

    def run_next(self) -> None:
        self.now, _, callback, argument = heappop(self.heap)
        callback(self.now, argument)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make it the running loop of this thread: the gateway's queue sets its timers on that."""
        outer = events._get_running_loop()
        events._set_running_loop(cast(asyncio.AbstractEventLoop, self))
        try:
            yield
        finally:
            events._set_running_loop(outer)
