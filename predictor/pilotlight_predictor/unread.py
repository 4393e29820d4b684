"""Ends the connection of a client that does not read what http.py writes to it.

Whoever makes an answer in parts is held back by who reads it: without a limit, one client that stops would keep a
model's instance for ever. The end is that of a client which has left, so nobody has to know of another.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pilotlight_predictor.lane_patience import LEAST_RATE, SLOW_S


@contextmanager
def abort_when_unread(transport: asyncio.WriteTransport | None, size: int = 0) -> Iterator[None]:
    """Around a write of `size` bytes, which waits for room. The pace is the one asked of those who send."""
    if transport is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(SLOW_S + size / LEAST_RATE, transport.abort)
    try:
        yield
    finally:
        timer.cancel()
