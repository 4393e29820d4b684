"""Aborts connections of clients that do not read their responses (http.py).

A streamed response has back-pressure: without a limit, one client that stops reading would block a model instance for
ever. The abort is handled as any disconnect.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pilotlight_predictor.lane_patience import LEAST_RATE, SLOW_S


@contextmanager
def abort_when_unread(transport: asyncio.WriteTransport | None, size: int = 0) -> Iterator[None]:
    """Abort the transport if the enclosed write of `size` bytes is slower than the minimum rate of senders."""
    if transport is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(SLOW_S + size / LEAST_RATE, transport.abort)
    try:
        yield
    finally:
        timer.cancel()
