"""Work and waits on the event loop, for frontends, protocols and workers: background tasks, timeouts of connections."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

SLOW_S: Final = 30.0  # for a request to arrive, on top of its size at LEAST_RATE: protects against slow-loris clients
LEAST_RATE: Final = 1 << 14  # bytes a second: 64 MiB may take 68 minutes, a stalled body 30 seconds
IDLE_S: Final = 75.0
_TASKS: Final[set[asyncio.Task[None]]] = set()  # the loop holds tasks only weakly


def spawn(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the background."""
    task = asyncio.get_running_loop().create_task(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or the time is over."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def timeout_s(arrived: int | None, unsent: int) -> float:
    """Return the timeout for a connection. `arrived`: bytes of the body so far, None if no request has begun;
    `unsent`: bytes of a response that the client has not read."""
    if unsent:
        return SLOW_S
    return IDLE_S if arrived is None else SLOW_S + arrived / LEAST_RATE


@contextmanager
def abort_when_unread(transport: asyncio.WriteTransport | None, size: int = 0) -> Iterator[None]:
    """Abort the transport if the enclosed write of `size` bytes is slower than the minimum rate of senders.

    A streamed response has back-pressure: without a limit, one client that stops reading would block a model instance
    for ever. The abort is handled as any disconnect.
    """
    if transport is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(SLOW_S + size / LEAST_RATE, transport.abort)
    try:
        yield
    finally:
        timer.cancel()
