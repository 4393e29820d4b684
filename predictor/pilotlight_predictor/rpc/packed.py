"""Compressed gRPC messages, decompressed step by step so that the output is accounted for while it grows.

Data may expand a thousandfold. Small messages are decompressed on the event loop, others in a thread; the caller stops
when the byte budget is used up.
"""

import zlib
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import QueueFull, RequestTooLarge, Unreadable

INLINE_BYTES: Final = 1 << 18  # decompressed on the event loop
STEP_BYTES: Final = 1 << 22  # between two checks of the byte budget
_SLICE: Final = 1 << 10  # bytes of input, which expand to 1 MiB at most
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}


class CompressedMessage:
    """One compressed message; its length is all memory it holds, compressed and plain."""

    __slots__ = ("_at", "_decompressor", "_encoding", "_max_size", "_plain", "_view")

    def __init__(self, message: Buffer, encoding: str, max_size: int) -> None:
        if encoding not in _WINDOW_BITS:
            raise Unreadable("a message is compressed, and grpc-encoding does not say how")
        self._view, self._at = memoryview(message), 0
        self._encoding, self._max_size = encoding, max_size
        self._decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])
        self._plain = bytearray()

    def __len__(self) -> int:
        return len(self._view) + len(self._plain)

    def decompress(self, step: int) -> Buffer | None:
        """Decompress about `step` bytes more; return the message when it is complete, else None."""
        until = len(self._plain) + step
        while self._at < len(self._view) and len(self._plain) < until:
            self._decompress_slice()
            if self._decompressor.eof:
                return bytes(self._plain) if step <= INLINE_BYTES else memoryview(self._plain).toreadonly()
        if self._at >= len(self._view):
            raise Unreadable(f"a message is cut off within its {self._encoding}")
        return None

    def _decompress_slice(self) -> None:
        try:
            self._plain += self._decompressor.decompress(self._view[self._at : self._at + _SLICE])
        except zlib.error as error:
            raise Unreadable(f"a message is not {self._encoding}: {error}") from None
        self._at += _SLICE
        if len(self._plain) > self._max_size:
            raise RequestTooLarge(f"a message has more than {self._max_size} bytes when it is unpacked")


class RejectedMessage(bytes):
    """Placeholder of a streamed message that exceeded the byte budget: its response is the error."""

    error: QueueFull

    @classmethod
    def from_error(cls, error: QueueFull) -> "RejectedMessage":
        rejected = cls()
        rejected.error = error
        return rejected
