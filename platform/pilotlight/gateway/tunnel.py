"""After `101 Switching Protocols`: bytes pass both ways as they are, WebSocket or anything else, until a side ends."""

import asyncio
from collections.abc import Callable


class Side(asyncio.Protocol):
    """Reads from one connection and writes to the other; whoever is written to faster than it reads stops the other."""

    def __init__(self, other: asyncio.Transport, on_end: Callable[[], None]) -> None:
        self._other = other
        self._on_end = on_end

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def pause_writing(self) -> None:
        self._other.pause_reading()

    def resume_writing(self) -> None:
        self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._other.close()
        self._on_end()


def join(client: asyncio.Transport, upstream: asyncio.Transport, early: bytes, on_end: Callable[[], None]) -> None:
    """`early` is what the client sent before it knew of the agreement. `on_end` is called once both are closed."""
    open_sides = 2

    def ended() -> None:
        nonlocal open_sides
        open_sides -= 1
        if not open_sides:
            on_end()

    client.set_protocol(Side(upstream, ended))
    upstream.set_protocol(Side(client, ended))
    if early:
        upstream.write(early)
    client.resume_reading()
