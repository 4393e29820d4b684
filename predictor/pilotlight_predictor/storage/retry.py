"""How often and how long to wait before a read is tried again."""

from collections.abc import Callable
from threading import Event
from typing import TypeVar

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.interface import FetchOptions, Transient

T = TypeVar("T")


def delay(attempt: int, options: FetchOptions, jitter: float) -> float:
    """Seconds before retry number `attempt` (from 0): 0.25, 0.5, 1 … 10, each scaled by jitter in [0.5, 1]."""
    return min(options.max_delay, options.first_delay * 2.0 ** min(attempt, 20)) * (0.5 + jitter / 2)


def jitter() -> float:
    """Spreads the retries of many replicas that lost the same server at the same instant."""
    from random import random

    return random()  # noqa: S311 - nothing secret about a pause


def retried(call: Callable[[], T], shown: str, options: FetchOptions, stop: Event | None = None) -> T:
    """For calls without partial progress, such as a listing."""
    waiting = stop or Event()
    for attempt in range(options.retries + 1):
        try:
            return call()
        except Transient as error:
            if attempt == options.retries or waiting.wait(delay(attempt, options, jitter())):
                raise gave_up(shown, error, attempt + 1) from error
    raise AssertionError("the last attempt returns or raises")


def gave_up(shown: str, error: Exception, attempts: int) -> LoadFailed:
    return LoadFailed(f"{shown}: {error}; gave up after {attempts} attempts, check the network and try again")
