"""Frames of HTTP/2 as bytes, header blocks assembled from them, and limits against floods of small ones. Pure."""

import struct
from collections.abc import Callable
from typing import Any, Final

from pilotlight.wire.http2.hpack import Decoder, HeaderField, TooManyFields

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

MAX_BLOCK: Final = 1 << 16  # bytes of a block in all its frames
MAX_FIELDS: Final = 1 << 15  # bytes of the decoded fields, as SETTINGS_MAX_HEADER_LIST_SIZE counts them
LONG_BLOCK: Final = 1 << 12  # bytes of a block per token of the flood limiter
MANY_FIELDS: Final = 32  # fields of a block per token: each takes 0.6 µs, also those of one byte
MAX_CACHED: Final = 64  # blocks
MAX_CACHED_BYTES: Final = 1024  # of one cached block
MAX_TOKENS: Final = 1000.0
REFILL_PER_S: Final = 100.0
TOKENS_PER_RESPONSE: Final = 3.0  # enough for a PING, a WINDOW_UPDATE and a RST_STREAM
YOUNG_S: Final = 0.02  # a stream reset before this age counts as rapid reset (CVE-2023-44487)

UINT31_MAX: Final = (1 << 31) - 1  # largest window and highest stream id (31 bits)
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 1 << 14
MAX_FRAME_LENGTH: Final = (1 << 24) - 1
HEAD_LENGTH: Final = 9
_CONNECTION_FRAMES: Final = frozenset({SETTINGS, PING, GOAWAY})
_STREAM_FRAMES: Final = frozenset({DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION})
_LENGTHS: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
HEAD: Final = struct.Struct(">IBI")  # 24-bit length and 8-bit type in one word, flags, stream id
_SETTING: Final = struct.Struct(">HI")
_NUMBER: Final = struct.Struct(">I")


class ConnectionFault(Exception):
    """Connection error (RFC 9113, 5.4.1): the peer gets GOAWAY, and the connection is closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in values.items()))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(more))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last: int, code: int, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last) + _NUMBER.pack(code) + reason.encode()[:256])


def check(kind: int, flags: int, number: int, length: int) -> None:
    """Check stream id (0: the connection) and length of a frame. Raise ConnectionFault."""
    if kind == PUSH_PROMISE:
        raise ConnectionFault(PROTOCOL_ERROR, "a client cannot push")
    if (kind in _CONNECTION_FRAMES and number) or (kind in _STREAM_FRAMES and not number):
        raise ConnectionFault(PROTOCOL_ERROR, f"a frame of kind {kind} cannot be about stream {number}")
    expected = 0 if kind == SETTINGS and flags & ACK else _LENGTHS.get(kind, length)
    if length != expected:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"a frame of kind {kind} has {length} bytes, must have {expected}")


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the pairs of identifier and value, unknown identifiers included. Raise ConnectionFault."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"SETTINGS has {len(payload)} bytes, must have a multiple of 6")
    pairs = list(_SETTING.iter_unpack(payload))
    for name, value in pairs:
        if name == INITIAL_WINDOW_SIZE and value > UINT31_MAX:
            raise ConnectionFault(FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE = {value}, must be at most {UINT31_MAX}")
        if name == MAX_FRAME_SIZE and not DEFAULT_FRAME <= value <= MAX_FRAME_LENGTH:
            problem = f"MAX_FRAME_SIZE = {value}, must be in {DEFAULT_FRAME}-{MAX_FRAME_LENGTH}"
            raise ConnectionFault(PROTOCOL_ERROR, problem)
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFault(PROTOCOL_ERROR, f"ENABLE_PUSH = {value}, must be 0 or 1")
    return pairs


def header_block(flags: int, payload: bytes) -> bytes:
    """Return the header block of a HEADERS frame without padding and priority."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS is padded and empty")
        start, end = 1, end - payload[0]
    if flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise ConnectionFault(PROTOCOL_ERROR, "HEADERS is shorter than its padding and priority")
    return payload[start:end]


class HeaderBlocks:
    """Header blocks of one direction of a connection. `read` turns decoded fields into a request head, `spend` takes
    tokens of the flood limiter for blocks that take long to decode.

    A client repeats its header block byte for byte once its HPACK table is stable, so decoded blocks are cached until
    the table changes: most requests cost one dictionary lookup.
    """

    def __init__(self, read: Callable[[list[HeaderField], bool], Any], spend: Callable[[int], None]) -> None:
        self.flags = 0  # of the HEADERS frame
        self._read, self._spend = read, spend
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

    def fields(self, block: bytes) -> tuple[list[HeaderField], bool]:
        """Return the fields of a complete block, and whether they are complete. Raise ConnectionFault."""
        version = self._decoder.version
        try:
            fields = self._decoder.fields(block)
        except TooManyFields as error:
            raise ConnectionFault(ENHANCE_YOUR_CALM, str(error)) from None
        except ValueError as error:
            raise ConnectionFault(COMPRESSION_ERROR, str(error)) from None
        if cost := max(len(block) // LONG_BLOCK, self._decoder.count // MANY_FIELDS):
            self._spend(cost)
        if self._decoder.version != version:  # the same bytes may mean other fields from here on
            self._cache.clear()
        return fields

    def _decode(self, block: bytes) -> Any:
        version = self._decoder.version
        head = self._read(*self.fields(block))
        # A block that changes the table itself must be decoded each time.
        if self._decoder.version == version and len(block) <= MAX_CACHED_BYTES:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[block] = head
        return head


class StreamAges:
    """Ages of streams by two marks, since a timestamp per stream would cost every call."""

    __slots__ = ("_mark", "_old", "_then")

    def __init__(self, now: float) -> None:
        # Time of the newest mark, the highest stream id at that time, and the highest id at the mark before it.
        self._then, self._mark, self._old = now, 0, 0

    def is_young(self, number: int, last: int, now: float) -> bool:
        """Whether a stream is younger than YOUNG_S; `last` is the newest stream id. After a pause the marks are old, so
        the first stream may count as younger than it is."""
        if now - self._then >= YOUNG_S:
            self._then, self._mark, self._old = now, last, self._mark
        return number > self._old


class FloodLimiter:
    """Token bucket against floods of frames without payload: PING, SETTINGS, RST_STREAM, empty DATA.

    Each is valid by itself, but costs the server as much as the client or more (CVE-2023-44487, CVE-2019-9512). Tokens
    come back with time and with every response, so that clients that ping once per response earn more than they spend.
    """

    __slots__ = ("_left", "_then")

    def __init__(self, now: float) -> None:
        self._left, self._then = MAX_TOKENS, now

    def spend(self, now: float, amount: int = 1) -> bool:
        """Take tokens; False if none are left."""
        self._left = min(MAX_TOKENS, self._left + (now - self._then) * REFILL_PER_S) - amount
        self._then = now
        return self._left >= 0

    def earn(self) -> None:
        self._left += TOKENS_PER_RESPONSE
