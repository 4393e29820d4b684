"""Reassembly of gRPC messages (flag, length, payload) from the bytes of a stream. Pure.

Frames are copied once, into the message. Memory grows with the bytes received, not with the announced length.
"""

import struct
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import RequestTooLarge, Unreadable
from pilotlight_predictor.rpc.packed import CompressedMessage

PREFIX: Final = struct.Struct(">BI")
LARGE: Final = 1 << 16  # bytes from which a message is passed on as a view instead of copied to bytes


class Reassembler:
    """Reader of length-prefixed messages of at most `max_size` bytes."""

    __slots__ = ("_compressed", "_encoding", "_max_size", "_prefix", "missing", "partial", "skipping")

    def __init__(self, max_size: int, encoding: str) -> None:
        self._max_size, self._encoding = max_size, encoding
        self._prefix = b""
        self._compressed = 0
        self.partial: bytearray | None = None  # the message that is arriving
        self.missing = 0  # bytes of it still to come
        self.skipping = False  # its bytes are discarded

    def feed(self, data: Buffer, start: int, end: int) -> list[Buffer | CompressedMessage]:
        """Return the messages that these bytes complete. Raise Unreadable or RequestTooLarge."""
        messages: list[Buffer | CompressedMessage] = []
        view = memoryview(data)
        while start < end or (self.partial is not None and not self.missing):
            if self.partial is None:
                start = self._read_prefix(view, start, end)
                continue
            used = min(self.missing, end - start)
            if not self.skipping:
                self.partial += view[start : start + used]
            self.missing -= used
            start += used
            if not self.missing:
                if not self.skipping:
                    messages.append(self._complete(self.partial))
                self.partial, self.skipping = None, False
        return messages

    def _read_prefix(self, view: memoryview, start: int, end: int) -> int:
        """Read the five-byte prefix, which may be split over frames; return the new position."""
        used = min(PREFIX.size - len(self._prefix), end - start)
        self._prefix += view[start : start + used]
        if len(self._prefix) == PREFIX.size:
            self._compressed, self.missing = PREFIX.unpack(self._prefix)
            self._prefix, self.partial = b"", bytearray()
            if self._compressed > 1:
                raise Unreadable(f"the flag of a message is {self._compressed}, must be 0 or 1")
            if self.missing > self._max_size:
                raise RequestTooLarge(f"the message has {self.missing} bytes, at most {self._max_size} are taken")
        return start + used

    @property
    def size(self) -> int:
        """Bytes held of the partial message."""
        return len(self.partial) if self.partial is not None else 0

    @property
    def in_message(self) -> bool:
        """Whether a message or its prefix is incomplete."""
        return self.partial is not None or bool(self._prefix)

    def skip(self) -> None:
        """Discard the arriving message; the next one begins where it ends."""
        self.partial, self.skipping = bytearray(), True

    def _complete(self, message: bytearray) -> Buffer | CompressedMessage:
        if self._compressed:
            return CompressedMessage(message, self._encoding, self._max_size)
        return bytes(message) if len(message) < LARGE else memoryview(message).toreadonly()
