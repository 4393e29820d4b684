"""A body that is still arriving: lane.py has read its head and waits here until the last byte is in place.

What the event loop reads for a lane comes as bytes of its own, which must be copied to where the body is put together.
Of a large body the rest is read from the socket straight into that place: for so long the connection belongs to the
body, a BufferedProtocol, and then to the lane again. The bytes of a tensor are so aligned that a model can compute on
them where they lie.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.wire.http1 import Buffer, Head

LARGE: Final = 1 << 17  # missing bytes for which changing hands twice (10 µs) costs less than copying them
TURN: Final = 1 << 20  # bytes that are read before others have their turn: 0.15 ms, where 10 MB would be 1.5
ALIGNMENT: Final = 64  # bytes: a cache line, and the widest registers
_NOTHING: Final = memoryview(b"")


class ArrivingBody(asyncio.BufferedProtocol):
    """Filled by `feed`, or by the socket itself after `read_from`; then `whole` is called with all of it."""

    __slots__ = ("_lane", "_transport", "_view", "_whole", "filled")

    def __init__(self, place: memoryview, lane: asyncio.Protocol, whole: Callable[[Buffer], None]) -> None:
        self.filled = 0
        self._view = place
        self._lane = lane
        self._whole = whole
        self._transport: asyncio.Transport | None = None

    @property
    def missing(self) -> int:
        return len(self._view) - self.filled

    def feed(self, data: Buffer) -> int:
        """Copies bytes that were read into their place; returns how many of them are the body's."""
        used = min(len(data), self.missing)
        self._view[self.filled : self.filled + used] = memoryview(data)[:used]
        self.filled += used
        return used

    def end(self) -> None:
        """Lets go of the memory, too: uvloop remembers who read last for as long as the connection lives."""
        view, self._view = self._view, _NOTHING
        self._whole(view)

    def read_from(self, transport: asyncio.Transport) -> None:
        """Takes the connection over until the body is whole."""
        self._transport = transport
        _change_hands(transport, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self.filled : self.filled + TURN]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._transport is not None
        self.filled += nbytes
        if not self.missing:
            _change_hands(self._transport, self._lane)
            self.end()
        elif nbytes == TURN:  # there may be more, and uvloop would go on reading it at once
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go of all that may know us in turn: the collector comes late, and the memory is large."""
        self._transport, self._view = None, _NOTHING
        self._lane.connection_lost(exc)

    def pause_writing(self) -> None:
        self._lane.pause_writing()

    def resume_writing(self) -> None:
        self._lane.resume_writing()


def arriving(
    head: Head, start: Buffer, lane: asyncio.Protocol, whole: Callable[[Buffer], None], *, in_place: bool
) -> ArrivingBody:
    """The body of a request of which only `start` has come. `in_place` needs numpy, for which a booting server would
    have to wait."""
    large = in_place and head.length - len(start) >= LARGE
    body = ArrivingBody(_aligned(head) if large else memoryview(bytearray(head.length)), lane, whole)
    body.feed(start)
    return body


def _change_hands(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """uvloop takes up the way in which a protocol wants to read only when reading starts."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()


def _aligned(head: Head) -> memoryview:
    """Memory for the body that nobody fills with zeros first, and in which the tensors behind the JSON are aligned."""
    import numpy as np

    text = head.headers.get(HEADER_INFERENCE_LENGTH, "")
    json_length = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0
    memory = np.empty(head.length + ALIGNMENT, np.uint8)
    first = -(memory.__array_interface__["data"][0] + json_length) % ALIGNMENT
    return memory[first : first + head.length].data
