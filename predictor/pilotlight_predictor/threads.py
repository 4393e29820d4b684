"""Blocking work off the event loop, in daemon threads: a load that hangs must not prevent the process's exit."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from traceback import clear_frames
from typing import Final, TypeVar

T = TypeVar("T")

STACK_SLOTS: Final = (1 << 15) + 200  # pointers; above a power of two, because a chunk is rounded up to the next one


def in_thread(work: Callable[[], T], unclaimed: Callable[[T], None] | None = None) -> asyncio.Future[T]:
    """Run `work` in a thread of its own. If the future is cancelled, `unclaimed` frees a late result."""
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
    """An error's frames refer to this one: with the future, which holds the error, that would be a reference cycle
    that holds all data of `work` until the next garbage collection. So frames are cleared and names deleted."""
    try:
        result = work()
    except BaseException as error:  # SystemExit too: the awaiting side handles it
        problem = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        clear_frames(error.__traceback__)
        _post(loop, future, partial(future.set_exception, problem))
        del problem
    else:
        free = partial(unclaimed, result) if unclaimed is not None else None
        _post(loop, future, partial(future.set_result, result), free)
    finally:
        del future, work


def with_deep_stack(work: Callable[[], T]) -> T:
    """Call `work` with a large chunk of Python frame memory, for a thread that imports.

    CPython allocates a thread's frames in chunks of 16 KB; the next is mapped when a call does not fit, and unmapped
    when that call returns. Deep imports that oscillate around the end of a chunk pay for it at every call: 3 to 10 %
    of a start. A frame with a large stack size gets a larger chunk and leaves half of it, 250 KB, to the calls within;
    only used pages are resident.
    """
    return work()


with_deep_stack.__code__ = with_deep_stack.__code__.replace(co_stacksize=STACK_SLOTS)


def in_threads(work: Sequence[Callable[[], object]], name: str) -> None:
    """Run all in parallel; raise the first failure when all have ended."""
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
        del failed[1:]  # with pop: errors left in this frame would form a cycle with it through their tracebacks
        raise failed.pop()


class ThreadLimiter:
    """Runs work of requests that is too long for the event loop in threads, at most `concurrency` at a time."""

    def __init__(self, concurrency: int) -> None:
        self._slots = asyncio.Semaphore(concurrency)

    async def run(self, work: Callable[[], T]) -> T:
        async with self._slots:
            return await in_thread(work)


def _post(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    settle: Callable[[], None],
    free: Callable[[], None] | None = None,
) -> None:
    """Settle the future on the loop, where it is known whether it was cancelled; free a late result in a thread."""

    def settle_once() -> None:
        if not future.done():
            settle()
        elif free is not None:
            Thread(target=free, name="pilotlight-free", daemon=True).start()

    try:
        loop.call_soon_threadsafe(settle_once)
    except RuntimeError:  # the loop is closed
        if free is not None:
            free()
