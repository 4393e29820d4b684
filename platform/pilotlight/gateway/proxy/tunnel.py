"""Tunnel between a client and a replica after 101 Switching Protocols."""

import asyncio
from collections.abc import Callable


class TunnelEnd(asyncio.Protocol):
    """Reads from one connection and writes to the other, with flow control, after 101 Switching Protocols."""

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


def start_tunnel(
    client: asyncio.Transport, upstream: asyncio.Transport, early: bytes, on_end: Callable[[], None]
) -> None:
    """Join two connections. `early`: bytes already read from the client; `on_end` is called once both are closed."""
    open_ends = 2

    def ended() -> None:
        nonlocal open_ends
        open_ends -= 1
        if not open_ends:
            on_end()

    client.set_protocol(TunnelEnd(upstream, ended))
    upstream.set_protocol(TunnelEnd(client, ended))
    if early:
        upstream.write(early)
    client.resume_reading()
