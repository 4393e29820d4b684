"""Polling with a deadline: the one way in which tests wait for something to happen."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0  # only for what never comes: a busy machine may stop for seconds


def eventually(
    holds: Callable[[], T],
    what: str | Callable[[], str] = "the condition",
    seconds: float = PATIENCE_S,
    *,
    pause_s: float = 0.01,
    check: Callable[[], object] = lambda: None,
    error: type[Exception] = AssertionError,
) -> T:
    """Return the first true result of `holds`; raise `error` after `seconds`.

    `what` describes it, as a function where that is expensive. `check` is called before each pause and may raise, such
    as when the process that is waited for has ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        late = time.monotonic() > deadline  # before the last look, so that a pause of the machine does not end it
        if result := holds():
            return result
        check()
        if late:
            raise error(_message(what, seconds))
        time.sleep(pause_s)


async def eventually_async(
    holds: Callable[[], T | Awaitable[T]],
    what: str | Callable[[], str] = "the condition",
    seconds: float = PATIENCE_S,
    *,
    pause_s: float = 0.002,
) -> T:
    """The same on an event loop; `holds` may be a coroutine function. The clock is the machine's, not the loop's."""
    deadline = time.monotonic() + seconds
    while True:
        late = time.monotonic() > deadline
        result = holds()
        if isawaitable(result):
            result = await result
        if result:
            return result
        if late:
            raise AssertionError(_message(what, seconds))
        await asyncio.sleep(pause_s)


def _message(what: str | Callable[[], str], seconds: float) -> str:
    return f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
