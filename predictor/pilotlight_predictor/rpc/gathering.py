"""Messages of gRPC put together from the bytes of a stream: a flag, a length, and so many bytes each. Pure.

A message whose frames come one by one is copied once, to where it stays; what it announces is not believed before it is
there, so that nobody fills the memory with a promise.
"""

import struct
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import RequestTooLarge, Unreadable
from pilotlight_predictor.rpc.packed import Packed

PREFIX: Final = struct.Struct(">BI")
LARGE: Final = 1 << 16  # bytes of a message that is not copied again, though that would make it simpler to read


class Gathering:
    __slots__ = ("_encoding", "_most", "_packed", "_prefix", "held", "missing", "skips")

    def __init__(self, most: int, encoding: str) -> None:
        self._most, self._encoding = most, encoding
        self._prefix = b""
        self._packed = 0
        self.held: bytearray | None = None  # the message that is arriving
        self.missing = 0  # bytes of it
        self.skips = False  # nothing is kept of it

    def feed(self, data: Buffer, start: int, end: int) -> list[Buffer | Packed]:
        """The messages that these bytes complete. Raises Unreadable and RequestTooLarge."""
        found: list[Buffer | Packed] = []
        view = memoryview(data)
        while start < end or (self.held is not None and not self.missing):
            if self.held is None:
                start = self._announce(view, start, end)
                continue
            used = min(self.missing, end - start)
            if not self.skips:
                self.held += view[start : start + used]
            self.missing -= used
            start += used
            if not self.missing:
                if not self.skips:
                    found.append(self._whole(self.held))
                self.held, self.skips = None, False
        return found

    def _announce(self, view: memoryview, start: int, end: int) -> int:
        """Reads the five bytes before a message, which may come apart."""
        used = min(PREFIX.size - len(self._prefix), end - start)
        self._prefix += view[start : start + used]
        if len(self._prefix) == PREFIX.size:
            self._packed, self.missing = PREFIX.unpack(self._prefix)
            self._prefix, self.held = b"", bytearray()
            if self._packed > 1:
                raise Unreadable(f"the flag of a message is {self._packed}, must be 0 or 1")
            if self.missing > self._most:
                raise RequestTooLarge(f"the message has {self.missing} bytes, at most {self._most} are taken")
        return start + used

    @property
    def size(self) -> int:
        """Bytes that wait here for more of them."""
        return len(self.held) if self.held is not None else 0

    @property
    def within(self) -> bool:
        """Whether an end would cut a message off."""
        return self.held is not None or bool(self._prefix)

    def skip(self) -> None:
        """Of the message that is arriving nothing is kept; the next one begins where it ends."""
        self.held, self.skips = bytearray(), True

    def _whole(self, message: bytearray) -> Buffer | Packed:
        if self._packed:
            return Packed(message, self._encoding, self._most)
        return bytes(message) if len(message) < LARGE else memoryview(message).toreadonly()
