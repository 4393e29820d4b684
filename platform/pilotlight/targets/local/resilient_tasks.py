"""Background work of the control process: failures are logged and survived, delayed work is queued once per item.

`EventRecorder` stores the events that `platformctl events` shows.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Generic, Literal, TypeVar

from pilotlight.errors import PlatformError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import Event, Key

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
        log.error("%s failed; this is a defect of ours, and it is tried again", what, exc_info=error)


class DelayedQueue(Generic[T]):
    """At most one pending call of `handle` per item, at the earliest requested time."""

    def __init__(self, handle: Callable[[T], None]) -> None:
        self._handle = handle
        self._timers: dict[T, asyncio.TimerHandle] = {}

    def add_after(self, seconds: float, item: T) -> None:
        loop = asyncio.get_running_loop()
        at, pending = loop.time() + seconds + MARGIN_S, self._timers.get(item)
        if pending is not None:
            at = min(at, pending.when())
            pending.cancel()

        def fire() -> None:
            del self._timers[item]
            self._handle(item)

        self._timers[item] = loop.call_at(at, fire)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class EventRecorder:
    """Writes events to the store; a failed write, such as on a full disk, is ignored."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(
        self, key: Key, subject: str, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        with suppress(PlatformError):
            self._store.add_event(Event(utc_now(), *key, subject, kind, reason, message))
