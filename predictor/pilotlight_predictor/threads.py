"""Blocking work off the event loop, in daemon threads: a load that hangs must not keep the process from exiting."""

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Runs `work` in a thread of its own; the future may be abandoned."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # the awaiting side decides what it means, SystemExit included
            problem = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            _post(loop, future, lambda: future.set_exception(problem))
        else:
            _post(loop, future, lambda: future.set_result(result))

    Thread(target=run, name="pilotlight-load", daemon=True).start()
    return future


def _post(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    def settle_once() -> None:
        if not future.done():
            settle()

    try:
        loop.call_soon_threadsafe(settle_once)
    except RuntimeError:  # the loop has closed: nobody waits any more
        return
