"""Blocking work off the event loop, in daemon threads: a load that hangs must not keep the process from exiting."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from traceback import clear_frames
from typing import Final, TypeVar

T = TypeVar("T")

ROOM: Final = (1 << 15) + 200  # in pointers; a little more than a power of two, to which a piece is rounded up


def in_thread(work: Callable[[], T], unclaimed: Callable[[T], None] | None = None) -> asyncio.Future[T]:
    """Runs `work` in a thread of its own. The future may be abandoned; `unclaimed` frees a result that comes then."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    Thread(target=_run, args=(loop, future, work, unclaimed), name="pilotlight-load", daemon=True).start()
    return future


def _run(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    work: Callable[[], T],
    unclaimed: Callable[[T], None] | None,
) -> None:
    """The frames of an error lead back to this one: with the future, which has the error, it would be a circle that
    keeps all that `work` was given and had in hand, until the next collection."""
    try:
        result = work()
    except BaseException as error:  # the awaiting side decides what it means, SystemExit included
        problem = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        clear_frames(error.__traceback__)
        _post(loop, future, partial(future.set_exception, problem))
        del problem
    else:
        free = partial(unclaimed, result) if unclaimed is not None else None
        _post(loop, future, partial(future.set_result, result), free)
    finally:
        del future, work


def with_room(work: Callable[[], T]) -> T:
    """`work`, for a thread that imports: it goes deep, and would else ask the kernel for memory a thousand times.

    Frames of a thread lie in pieces of 16 KB; the next is mapped when a call does not fit, and unmapped when that call
    returns. Wherever imports happen to reach the end of one, every call pays for it: 3 to 10 % of a start. A frame that
    claims more has a larger piece, and leaves half of it to the calls within: 250 KB, of which only what is used is
    real.
    """
    return work()


with_room.__code__ = with_room.__code__.replace(co_stacksize=ROOM)


def in_threads(work: Sequence[Callable[[], object]], name: str) -> None:
    """All at once; the first failure is raised when all have ended."""
    failed: list[Exception] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except Exception as error:
            failed.append(error)

    threads = [Thread(target=run, args=(one,), name=name, daemon=True) for one in work[1:]]
    for thread in threads:
        thread.start()
    for one in work[:1]:
        run(one)
    for thread in threads:
        thread.join()
    if failed:
        del failed[1:]  # and the last: what an error's frames lead to would be kept with it, until a collection
        raise failed.pop()


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
