"""Retries of reads with exponential backoff."""

from collections.abc import Callable
from threading import Event
from typing import TypeVar

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.interface import FetchOptions, TransientError

T = TypeVar("T")


def backoff_delay(attempt: int, options: FetchOptions, jitter: float) -> float:
    """Return the seconds before retry `attempt` (from 0): 0.25, 0.5, 1 … 10, each scaled by jitter in [0.5, 1]."""
    return min(options.max_delay, options.first_delay * 2.0 ** min(attempt, 20)) * (0.5 + jitter / 2)


def jitter() -> float:
    """Return a random number that spreads the retries of replicas that lost the same server at the same time."""
    from random import random

    return random()  # noqa: S311 - nothing secret about a pause


def with_retries(call: Callable[[], T], redacted: str, options: FetchOptions, stop: Event | None = None) -> T:
    """Return the result of a call without partial progress, such as a listing, with retries."""
    waiting = stop or Event()
    for attempt in range(options.retries + 1):
        try:
            return call()
        except TransientError as error:
            if attempt == options.retries or waiting.wait(backoff_delay(attempt, options, jitter())):
                raise retries_exhausted(redacted, error, attempt + 1) from error
    raise AssertionError("the last attempt returns or raises")


def retries_exhausted(redacted: str, error: Exception, attempts: int) -> LoadFailed:
    return LoadFailed(f"{redacted}: {error}; gave up after {attempts} attempts, check the network and try again")
