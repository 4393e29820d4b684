"""Header blocks: assembled from HEADERS and CONTINUATION, decoded, and cached.

A client repeats its header block byte for byte once its HPACK table is stable, so decoded blocks are cached until the
table changes: most requests cost one dictionary lookup.
"""

from collections.abc import Callable
from typing import Any, Final

from pilotlight.wire.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, PROTOCOL_ERROR, ConnectionFault
from pilotlight.wire.http2.hpack import Decoder, HeaderField

MAX_BLOCK: Final = 1 << 16  # bytes of a block in all its frames
MAX_FIELDS: Final = 1 << 15  # bytes of the decoded fields, as SETTINGS_MAX_HEADER_LIST_SIZE counts them
MAX_CACHED: Final = 64  # blocks
MAX_CACHED_BYTES: Final = 1024  # of one cached block


class HeaderBlocks:
    """Header blocks of one direction of a connection. `read` turns decoded fields into a request head."""

    def __init__(self, read: Callable[[list[HeaderField], bool], Any]) -> None:
        self.flags = 0  # of the HEADERS frame
        self._read = read
        self._decoder = Decoder(MAX_FIELDS)
        self._cache: dict[bytes, Any] = {}
        self._stream = 0
        self._parts: bytearray | None = None

    @property
    def unfinished(self) -> bool:
        return self._parts is not None

    def begin(self, number: int, flags: int, block: bytes) -> None:
        self._stream, self.flags, self._parts = number, flags, bytearray(block)

    def append(self, number: int, more: bytes) -> None:
        if self._parts is None or number != self._stream:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION continues nothing")
        self._parts += more
        if len(self._parts) > MAX_BLOCK:
            raise ConnectionFault(ENHANCE_YOUR_CALM, f"a header block has more than {MAX_BLOCK} bytes")

    def end(self) -> bytes:
        parts, self._parts = self._parts or bytearray(), None
        return bytes(parts)

    def head(self, block: bytes) -> Any:
        """Return the head of a complete block, from the cache where possible. Raise ConnectionFault."""
        head = self._cache.get(block)
        return self._decode(block) if head is None else head

    def _decode(self, block: bytes) -> Any:
        version = self._decoder.version
        try:
            fields, whole = self._decoder.fields(block)
        except ValueError as error:
            raise ConnectionFault(COMPRESSION_ERROR, str(error)) from None
        head = self._read(fields, whole)
        # The same bytes mean the same fields only while the dynamic table is unchanged. A block that changes the table
        # itself must be decoded each time.
        if self._decoder.version != version or len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        if self._decoder.version == version and len(block) <= MAX_CACHED_BYTES:
            self._cache[block] = head
        return head
