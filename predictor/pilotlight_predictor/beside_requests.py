"""Work that holds the GIL, such as a load or an import, in a thread while requests are served.

A thread releases the GIL after another has waited for the switch interval, 5 ms by default, and a request acquires it
several times: when its bytes arrive, when the model has computed, when the response is written. During an import it
would take 10 ms instead of 0.25 ms. So the interval is short while such work runs.
"""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final, TypeVar

from pilotlight_predictor.threads import in_thread, with_deep_stack

T = TypeVar("T")

LOADED_INTERVAL_S: Final = 0.0002  # duration of a small request: much less would interrupt requests themselves


class _SwitchInterval:
    """The process-wide switch interval: the first of several works shortens it, the last one restores it."""

    def __init__(self) -> None:
        self._works, self._usual, self._lock = 0, 0.0, Lock()

    def begin(self) -> None:
        with self._lock:
            if self._works == 0:
                self._usual = sys.getswitchinterval()
                if self._usual > LOADED_INTERVAL_S:
                    sys.setswitchinterval(LOADED_INTERVAL_S)
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


_interval: Final = _SwitchInterval()


def limit_switch_interval(seconds: float) -> None:
    """Limit the interval permanently, from any thread, also while work runs that will restore it."""
    _interval.shorten(seconds)


def in_thread_under_load(work: Callable[[], T], unclaimed: Callable[[T], None] | None = None) -> asyncio.Future[T]:
    """As `in_thread`, with a short switch interval. Called on the event loop, where the future is settled too."""
    _interval.begin()
    try:
        future = in_thread(partial(with_deep_stack, work), unclaimed)
    except BaseException:
        _interval.end(None)
        raise
    future.add_done_callback(_interval.end)
    return future
