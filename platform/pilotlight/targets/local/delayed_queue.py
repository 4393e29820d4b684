"""Background work of the control process: failures are logged and survived, delayed work is queued once per item."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

T = TypeVar("T")
MARGIN_S: Final = 0.01  # fire slightly late: a moment too early nothing would be due yet
log = logging.getLogger("pilotlight.rounds")


@contextmanager
def log_and_continue(what: str) -> Iterator[None]:
    """Log an exception of the body and continue after it, so that a background task does not end unnoticed.

    Cancellation passes through.
    """
    try:
        yield
    except Exception as error:
        log.error("%s failed; this is a bug, retrying", what, exc_info=error)


class DelayedQueue(Generic[T]):
    """At most one pending call of `handle` per item, at the earliest requested time."""

    def __init__(self, handle: Callable[[T], None]) -> None:
        self._handle = handle
        # Each with its time: where that is past, the handles of uvloop have none.
        self._timers: dict[T, tuple[float, asyncio.Handle]] = {}

    def add_after(self, seconds: float, item: T) -> None:
        loop = asyncio.get_running_loop()
        at, pending = loop.time() + seconds + MARGIN_S, self._timers.get(item)
        if pending is not None:
            at = min(at, pending[0])
            pending[1].cancel()

        def fire() -> None:
            del self._timers[item]
            self._handle(item)

        self._timers[item] = at, loop.call_at(at, fire)

    def close(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
