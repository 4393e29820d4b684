"""Work that goes on as long as the control process does: a round that fails is told, and the next one comes."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, TypeVar

T = TypeVar("T")
BEYOND_S: Final = 0.01  # a look a moment too early would find nothing to do
log = logging.getLogger("pilotlight.rounds")


class Survived:
    """Around one round. A task that ended by it would end unseen, and all that it does for every service with it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False  # nothing failed, or the task shall end
        log.error("%s failed; this is a defect of ours, and it is tried again", self._what, exc_info=error)
        return True


class Looks(Generic[T]):
    """One look to come at each thing, however often it was asked for: the soonest. It may ask for another."""

    def __init__(self, look: Callable[[T], None]) -> None:
        self._look = look
        self._coming: dict[T, asyncio.TimerHandle] = {}

    def soon(self, seconds: float, thing: T) -> None:
        loop = asyncio.get_running_loop()
        at, known = loop.time() + seconds + BEYOND_S, self._coming.get(thing)
        if known is not None:
            at = min(at, known.when())
            known.cancel()
        self._coming[thing] = loop.call_at(at, self._now, thing)

    def close(self) -> None:
        for timer in self._coming.values():
            timer.cancel()
        self._coming.clear()

    def _now(self, thing: T) -> None:
        del self._coming[thing]
        self._look(thing)
