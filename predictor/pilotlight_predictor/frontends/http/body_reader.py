"""Reading of request bodies, for the fast HTTP protocol.

Bytes that the event loop passes to an asyncio.Protocol must be copied into the body's buffer. The rest of a large body
is read from the socket directly into that buffer instead: until its end the body, a BufferedProtocol, is the
connection's protocol. The buffer is aligned so that a model can compute on its binary tensors in place. Its pages are
in memory when they are written, so that a body counts with the bytes that have arrived.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.wire.http1 import Buffer, PlainRequestHead
from pilotlight_predictor.frontends.tasks_and_timeouts import Arrival

LARGE: Final = 1 << 17  # missing bytes from which switching protocols twice (10 µs) costs less than copying
MAX_READ: Final = 1 << 20  # bytes per iteration of the event loop: 0.15 ms; 10 MB would block others for 1.5 ms
ALIGNMENT: Final = 64  # bytes: a cache line, and the widest SIMD registers
DISCARDED: Final = 1 << 16  # bytes per read of the rest of a refused body
_NOTHING: Final = memoryview(b"")


class BodyReader(asyncio.BufferedProtocol):
    """Reader of one body, filled by `feed`, or from the socket after `read_from`; then `on_complete` gets the body.

    `account` is called with the number of bytes that have come; where it returns False, the body is discarded.
    """

    __slots__ = (
        "_account", "_connection", "_on_complete", "_transport", "_view", "arrival", "discarding", "filled", "length",
    )  # fmt: skip

    def __init__(
        self,
        memory: memoryview,
        connection: asyncio.Protocol,
        on_complete: Callable[[Buffer], None],
        account: Callable[[int], bool],
    ) -> None:
        self.length = len(memory)
        self.filled = 0
        self.arrival = Arrival(monotonic())
        self.discarding = False
        self._view = memory
        self._connection = connection
        self._on_complete, self._account = on_complete, account
        self._transport: asyncio.Transport | None = None

    @property
    def missing(self) -> int:
        return self.length - self.filled

    def feed(self, data: Buffer) -> int:
        """Copy bytes into the body; return how many of them belong to it."""
        used = min(len(data), self.missing)
        if not self.discarding:
            self._view[self.filled : self.filled + used] = memoryview(data)[:used]
        self._add(used)
        return used

    def _add(self, arrived: int) -> None:
        self.filled += arrived
        if not self.discarding and not self._account(arrived):
            self.discard()

    def discard(self) -> None:
        """Read the rest without keeping it: a client that is cut off while it sends would not see its response."""
        self.discarding = True
        self._view = memoryview(bytearray(min(DISCARDED, self.missing)))

    def end(self) -> None:
        """Pass the body on and drop the reference to it: uvloop holds the last reader while the connection lives."""
        view, self._view = self._view, _NOTHING
        self._on_complete(view)

    def read_from(self, transport: asyncio.Transport) -> None:
        """Become the connection's protocol until the body is complete."""
        self._transport = transport
        _switch_protocol(transport, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[: self.missing] if self.discarding else self._view[self.filled : self.filled + MAX_READ]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._transport is not None
        self._add(nbytes)
        if not self.missing:
            _switch_protocol(self._transport, self._connection)
            self.end()
        elif nbytes == MAX_READ:  # uvloop would continue reading in this iteration
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Break reference cycles now: the buffer is large, and garbage collection is late."""
        self._transport, self._view = None, _NOTHING
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def create_body_reader(
    head: PlainRequestHead, start: Buffer, connection: asyncio.Protocol, on_complete: Callable[[Buffer], None],
    account: Callable[[int], bool], *, in_place: bool,
) -> BodyReader:  # fmt: skip
    """Create the reader of a body whose beginning, `start`, has arrived. `in_place` needs numpy, which a booting
    server does not have yet."""
    large = in_place and head.length - len(start) >= LARGE
    memory = _aligned(head) if large else memoryview(bytearray(head.length))
    body = BodyReader(memory, connection, on_complete, account)
    body.feed(start)
    return body


def _switch_protocol(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Set the protocol; uvloop checks whether it is buffered only when reading starts."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()


def _aligned(head: PlainRequestHead) -> memoryview:
    """Return uninitialized memory for the body in which the tensors after the JSON are aligned."""
    import numpy as np

    text = head.headers.get(HEADER_INFERENCE_LENGTH, "")
    json_length = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0
    memory = np.empty(head.length + ALIGNMENT, np.uint8)
    first = -(memory.__array_interface__["data"][0] + json_length) % ALIGNMENT
    return memory[first : first + head.length].data
