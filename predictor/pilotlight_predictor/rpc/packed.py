"""Compressed messages of gRPC, unpacked a step at a time, so that what comes out is counted while it grows.

A few bytes may become a thousand times as many. exchange.py and inbox.py unpack what is small where they are, and the
rest in a thread; whoever has no room for more stops there.
"""

import zlib
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import QueueFull, RequestTooLarge, Unreadable

AT_ONCE: Final = 1 << 18  # bytes that are unpacked on the event loop
STEP: Final = 1 << 22  # bytes between two looks at whether there is room
_SLICE: Final = 1 << 10  # bytes of input that become a mebibyte at most
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}


class Packed:
    """One message; its length is what it holds: what came, and what was made of that."""

    __slots__ = ("_at", "_encoding", "_most", "_packer", "_plain", "_view")

    def __init__(self, message: Buffer, encoding: str, most: int) -> None:
        if encoding not in _WINDOW_BITS:
            raise Unreadable("a message is compressed, and grpc-encoding does not say how")
        self._view, self._at = memoryview(message), 0
        self._encoding, self._most = encoding, most
        self._packer = zlib.decompressobj(_WINDOW_BITS[encoding])
        self._plain = bytearray()

    def __len__(self) -> int:
        return len(self._view) + len(self._plain)

    def unpack(self, step: int) -> Buffer | None:
        """So many bytes more; the message when that was all of it."""
        until = len(self._plain) + step
        while self._at < len(self._view) and len(self._plain) < until:
            self._unpack_slice()
            if self._packer.eof:
                return bytes(self._plain) if step <= AT_ONCE else memoryview(self._plain).toreadonly()
        if self._at >= len(self._view):
            raise Unreadable(f"a message is cut off within its {self._encoding}")
        return None

    def _unpack_slice(self) -> None:
        try:
            self._plain += self._packer.decompress(self._view[self._at : self._at + _SLICE])
        except zlib.error as error:
            raise Unreadable(f"a message is not {self._encoding}: {error}") from None
        self._at += _SLICE
        if len(self._plain) > self._most:
            raise RequestTooLarge(f"a message has more than {self._most} bytes when it is unpacked")


class Refused(bytes):
    """Stands in line for a message of a stream that there was no room for: it is answered by its error."""

    error: QueueFull

    @classmethod
    def by(cls, error: QueueFull) -> "Refused":
        made = cls()
        made.error = error
        return made
