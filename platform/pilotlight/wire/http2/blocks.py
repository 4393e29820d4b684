"""Header blocks as they come: put together from their frames, read, and remembered with what they mean.

A client repeats its header block byte for byte once its table has settled, so a block is remembered for as long as the
table stays as it is: most requests cost a look into a dictionary.
"""

from collections.abc import Callable
from typing import Any, Final

from pilotlight.wire.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, PROTOCOL_ERROR, ConnectionFault
from pilotlight.wire.http2.hpack import Decoder, Field

MAX_BLOCK: Final = 1 << 16  # bytes of a block in all its frames
MAX_FIELDS: Final = 1 << 15  # bytes of the fields that it stands for
MAX_KNOWN: Final = 64  # blocks that are remembered
LONGEST_KNOWN: Final = 1024  # bytes of such a block


class Blocks:
    """Of one direction of a connection. `read` says what the fields of a block mean."""

    def __init__(self, read: Callable[[list[Field], bool], Any]) -> None:
        self.flags = 0  # of the frame that began the block
        self._read = read
        self._decoder = Decoder(MAX_FIELDS)
        self._known: dict[bytes, Any] = {}
        self._number = 0
        self._parts: bytearray | None = None

    @property
    def unfinished(self) -> bool:
        return self._parts is not None

    def begin(self, number: int, flags: int, block: bytes) -> None:
        self._number, self.flags, self._parts = number, flags, bytearray(block)

    def go_on(self, number: int, more: bytes) -> None:
        if self._parts is None or number != self._number:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION continues nothing")
        self._parts += more
        if len(self._parts) > MAX_BLOCK:
            raise ConnectionFault(ENHANCE_YOUR_CALM, f"a header block has more than {MAX_BLOCK} bytes")

    def end(self) -> bytes:
        parts, self._parts = self._parts or bytearray(), None
        return bytes(parts)

    def meaning(self, block: bytes) -> Any:
        found = self._known.get(block)
        return self._learn(block) if found is None else found

    def _learn(self, block: bytes) -> Any:
        before = self._decoder.version
        try:
            fields, whole = self._decoder.fields(block)
        except ValueError as error:
            raise ConnectionFault(COMPRESSION_ERROR, str(error)) from None
        found = self._read(fields, whole)
        if self._decoder.version != before or len(self._known) >= MAX_KNOWN:
            self._known.clear()
        if self._decoder.version == before and len(block) <= LONGEST_KNOWN:
            self._known[block] = found
        return found
