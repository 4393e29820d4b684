"""Work and waits on the event loop, for frontends, protocols and workers: background tasks, timeouts of connections."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

SLOW_S: Final = 30.0  # for a request to arrive, on top of its size at LEAST_RATE: protects against slow-loris clients
LEAST_RATE: Final = 1 << 14  # bytes a second: 64 MiB may take 68 minutes, a stalled body 30 seconds
SCARCE_S: Final = 5.0  # in place of SLOW_S for bodies while memory is scarce; also the interval of checks
IDLE_S: Final = 75.0
_TASKS: Final[set[asyncio.Task[None]]] = set()  # the loop holds tasks only weakly


def spawn(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or the time is over."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class Arrival:
    """Rate at which a body comes: LEAST_RATE in every period, so that what came before is no credit for a stall."""

    __slots__ = ("_counted", "_since")

    def __init__(self, now: float) -> None:
        self._since, self._counted = now, 0

    def is_overdue(self, arrived: int, now: float, period_s: float) -> bool:
        """Return whether too few of the `arrived` bytes have come in the last period. Called every few seconds."""
        if arrived - self._counted >= LEAST_RATE * period_s:
            self._since, self._counted = now, arrived
        return now - self._since > period_s


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
