"""Blocking work that needs the interpreter, such as a load or an import, beside requests that need it too.

A thread gives the interpreter away when another has waited for it for a while, 5 ms by default, and a request asks for
it several times: when its bytes arrive, when the model has computed, when the answer is written. Next to an import it
would take 10 ms instead of a quarter of one. While such work goes on the wait is short, and afterwards as it was.
"""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final, TypeVar

from pilotlight_predictor.threads import in_thread, with_room

T = TypeVar("T")

WAIT_S: Final = 0.0002  # as long as a small request: much less would take the interpreter away within one


class _ShortWaits:
    """The interpreter has one such setting: the first of several works changes it, the last one puts it back."""

    def __init__(self) -> None:
        self._works, self._usual, self._lock = 0, 0.0, Lock()

    def begin(self) -> None:
        with self._lock:
            if self._works == 0:
                self._usual = sys.getswitchinterval()
                if self._usual > WAIT_S:  # what is set again may be a little less each time: it is cut to microseconds
                    sys.setswitchinterval(WAIT_S)
            self._works += 1

    def end(self, _: object) -> None:
        with self._lock:
            self._works -= 1
            if self._works == 0:
                sys.setswitchinterval(self._usual)

    def shorten(self, seconds: float) -> None:
        with self._lock:
            self._usual = min(seconds, self._usual if self._works else sys.getswitchinterval())
            if self._works == 0:
                sys.setswitchinterval(self._usual)


_waits: Final = _ShortWaits()


def wait_at_most(seconds: float) -> None:
    """For good, from any thread: a work beside requests, which a load is, does not put back what was before."""
    _waits.shorten(seconds)


def beside_requests(work: Callable[[], T], unclaimed: Callable[[T], None] | None = None) -> asyncio.Future[T]:
    """`in_thread`, where requests come meanwhile. Called on the event loop, where the future ends too."""
    _waits.begin()
    try:
        future = in_thread(partial(with_room, work), unclaimed)
    except BaseException:
        _waits.end(None)
        raise
    future.add_done_callback(_waits.end)
    return future
