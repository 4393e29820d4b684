"""Blocking work off the event loop, in daemon threads: a load that hangs must not keep the process from exiting."""

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Thread
from traceback import clear_frames
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T], unclaimed: Callable[[T], None] | None = None) -> asyncio.Future[T]:
    """Runs `work` in a thread of its own. The future may be abandoned; `unclaimed` frees a result that comes then."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # the awaiting side decides what it means, SystemExit included
            problem = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            clear_frames(error.__traceback__)  # it and the future hold each other, and so all that `work` had in hand
            _post(loop, future, lambda: future.set_exception(problem))
        else:
            free = partial(unclaimed, result) if unclaimed is not None else None
            _post(loop, future, lambda: future.set_result(result), free)

    Thread(target=run, name="pilotlight-load", daemon=True).start()
    return future


class FewThreads:
    """Work that is too long for the event loop but not for a request, a few at a time; the rest wait their turn."""

    def __init__(self, at_a_time: int) -> None:
        self._turns = asyncio.Semaphore(at_a_time)

    async def run(self, work: Callable[[], T]) -> T:
        async with self._turns:
            return await in_thread(work)


def _post(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    settle: Callable[[], None],
    free: Callable[[], None] | None = None,
) -> None:
    """Whether somebody still waits is known on the loop alone; freeing may take its time, and so happens elsewhere."""

    def settle_once() -> None:
        if not future.done():
            settle()
        elif free is not None:
            Thread(target=free, name="pilotlight-free", daemon=True).start()

    try:
        loop.call_soon_threadsafe(settle_once)
    except RuntimeError:  # the loop has closed: nobody waits any more
        if free is not None:
            free()
