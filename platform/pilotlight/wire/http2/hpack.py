"""HPACK (RFC 7541): a decoder with its dynamic table, and the encodings that response blocks are composed of.

Nothing is written with Huffman codes: response blocks have a handful of bytes, and decoding costs the client time.
"""

from collections import deque
from functools import lru_cache
from typing import Final

EOS: Final = 256
# Huffman code (appendix B). It is canonical: codes of one length are consecutive in the order of their symbols, and
# longer codes follow shorter ones, so the symbols of each length define it. A node of the code tree is written as its
# path in bits behind a leading 1. The transition of a node by a byte is computed when it first occurs, and cached.
_BY_LENGTH: Final[dict[int, tuple[int, ...]]] = {
    5: (48, 49, 50, 97, 99, 101, 105, 111, 115, 116),
    6: (32, 37, 45, 46, 47, *range(51, 58), 61, 65, 95, 98, 100, 102, 103, 104, 108, 109, 110, 112, 114, 117),
    7: (58, *range(66, 88), 89, 106, 107, 113, *range(118, 123)),
    8: (38, 42, 44, 59, 88, 90),
    10: (33, 34, 40, 41, 63),
    11: (39, 43, 124),
    12: (35, 62),
    13: (0, 36, 64, 91, 93, 126),
    14: (94, 125),
    15: (60, 96, 123),
    19: (92, 195, 208),
    20: (128, 130, 131, 162, 184, 194, 224, 226),
    21: (153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230),
    22: (129, 132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190, 196,
         198, 228, 232, 233),
    23: (1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166, 168, 174, 175, 180,
         182, 183, 188, 191, 197, 231, 239),
    24: (9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237),
    25: (199, 207, 234, 235),
    26: (192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255),
    27: (203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252, 253, 254),
    28: (*range(2, 9), 11, 12, *range(14, 22), *range(23, 32), 127, 220, 249),
    30: (10, 13, 22, EOS),
}  # fmt: skip
_ROOT: Final = 1


def _codes() -> dict[int, int]:
    """Return the symbol at each leaf."""
    leaves, code, before = {}, 0, 0
    for length, symbols in _BY_LENGTH.items():
        code <<= length - before
        for symbol in symbols:
            leaves[1 << length | code] = symbol
            code += 1
        before = length
    return leaves


_LEAVES: Final = _codes()
_TRANSITIONS: Final[dict[int, tuple[bytes, int]]] = {}  # by node and byte: decoded text, and the next node


def _transition(node: int, byte: int) -> tuple[bytes, int]:
    key, text = node << 8 | byte, bytearray()
    for place in range(7, -1, -1):
        node = node << 1 | byte >> place & 1
        symbol = _LEAVES.get(node)
        if symbol == EOS:
            raise ValueError("a Huffman string holds EOS")
        if symbol is not None:
            text.append(symbol)
            node = _ROOT
    result = _TRANSITIONS[key] = bytes(text), node
    return result


@lru_cache(1024)
def decode_short(data: bytes) -> bytes:
    """Decode a string that is likely to repeat, such as a header name."""
    return decode(data)


def decode(data: bytes) -> bytes:
    """Decode a string. Raise ValueError where it holds EOS, ends within a code, or has wrong padding."""
    text, node, transitions = bytearray(), _ROOT, _TRANSITIONS
    for byte in data:
        more, node = transitions.get(node << 8 | byte) or _transition(node, byte)
        text += more
    # Valid padding is at most 7 ones (the beginning of EOS): the path is all ones, so node + 1 is a power of two.
    if node & node + 1 or node > 0xFF:
        raise ValueError("a Huffman string ends within a code")
    return bytes(text)


HeaderField = tuple[str, str]
ENTRY_COST: Final = 32  # overhead per entry in bytes (RFC 7541, 4.1)
DEFAULT_TABLE: Final = 4096
SHORT: Final = 64  # bytes; shorter Huffman strings are cached
MAX_EXCESS: Final = 4  # times the size limit: beyond it a block is not decoded to its end
MAX_INTEGER_BYTES: Final = 5  # bytes after the prefix: 35 bits, so that an endless integer cannot be sent
_STATIC_TEXT: Final = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|:status=200|:status=204|"
    ":status=206|:status=304|:status=400|:status=404|:status=500|accept-charset|accept-encoding=gzip, deflate|"
    "accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control|"
    "content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|"
    "cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|"
    "last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|"
    "retry-after|server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)


_ROWS: Final = [row.partition("=") for row in _STATIC_TEXT.split("|")]
# Entry 0 is unused: HPACK indices start at 1.
STATIC: Final[tuple[HeaderField, ...]] = (("", ""), *((name, value) for name, _, value in _ROWS))
_NAMES: Final = {name: number for number, (name, _) in reversed(list(enumerate(STATIC)))}


class TooManyFields(ValueError):
    """A block that goes on far beyond the size limit."""


class Decoder:
    """Decoder of one direction of one connection. `version` changes whenever the dynamic table does: between two
    changes the same block always decodes to the same fields."""

    def __init__(self, most: int) -> None:
        self.version = 0
        self.count = 0  # fields of the last block, those dropped included
        self._most = most  # bytes of one decoded block
        self._table: deque[HeaderField] = deque()
        self._size, self._capacity = 0, DEFAULT_TABLE

    def fields(self, block: bytes) -> tuple[list[HeaderField], bool]:
        """Return the fields, and whether they are complete: fields beyond the size limit are dropped. Raise ValueError,
        after which no further block of the connection can be decoded."""
        fields: list[HeaderField] = []
        count = at = self._read_size_updates(block)  # each byte of an update costs as much as a field
        total = 0
        while at < len(block):
            field, at = self._field(block, at)
            total += len(field[0]) + len(field[1]) + ENTRY_COST
            count += 1
            if total <= self._most:  # beyond it the block is still decoded: it may change the table
                fields.append(field)
            elif total > MAX_EXCESS * self._most:
                raise TooManyFields(f"a header block has more than {MAX_EXCESS * self._most} bytes of fields")
        self.count = count
        return fields, total <= self._most

    def _read_size_updates(self, block: bytes) -> int:
        """Apply the size updates, which come first in a block (RFC 7541, 4.2); return where they end."""
        at = 0
        while at < len(block) and block[at] & 0xE0 == 0x20:
            size, at = read_integer(block, at, 5)
            if size > DEFAULT_TABLE:
                raise ValueError(f"the table's size = {size}, must be at most {DEFAULT_TABLE}")
            self._capacity, self.version = size, self.version + 1
            self._evict(0)
        return at

    def _field(self, block: bytes, at: int) -> tuple[HeaderField, int]:
        first = block[at]
        if first & 0x80:
            number, at = read_integer(block, at, 7)
            return self._entry(number), at
        if first & 0xE0 == 0x20:
            raise ValueError("the table's size changes within a block")
        incremental = first & 0x40
        number, at = read_integer(block, at, 6 if incremental else 4)
        if number:
            name = self._entry(number)[0]
        else:
            name, at = _read_text(block, at)
        value, at = _read_text(block, at)
        field = (name, value)
        if incremental:
            self.version += 1
            size = _cost(field)
            self._evict(size)
            if size <= self._capacity:  # a larger entry is no error: it empties the table (RFC 7541, 4.4)
                self._table.appendleft(field)
                self._size += size
        return field, at

    def _entry(self, number: int) -> HeaderField:
        if 0 < number < len(STATIC):
            return STATIC[number]
        if not 0 <= number - len(STATIC) < len(self._table):
            raise ValueError(f"the table has no entry {number}")
        return self._table[number - len(STATIC)]

    def _evict(self, coming: int) -> None:
        while self._table and self._size + coming > self._capacity:
            self._size -= _cost(self._table.pop())


def _cost(field: HeaderField) -> int:
    return len(field[0]) + len(field[1]) + ENTRY_COST


def read_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return an integer with a prefix of `bits` bits (RFC 7541, 5.1), and where it ends."""
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for place in range(MAX_INTEGER_BYTES):
        if at >= len(block):
            break
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise ValueError("an integer is cut off or too large")


def _read_text(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise ValueError("a string is missing")
    packed = block[at] & 0x80
    length, at = read_integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise ValueError("a string is cut off")
    raw = block[at:end]
    if packed:
        raw = decode_short(raw) if length <= SHORT else decode(raw)
    return raw.decode("latin-1"), end


def write_integer(value: int, bits: int, first: int = 0) -> bytes:
    mask = (1 << bits) - 1
    if value < mask:
        return bytes((first | value,))
    encoded, value = bytearray((first | mask,)), value - mask
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def literal(name: str, value: str, *, index: bool = False) -> bytes:
    """Return a literal field; with `index`, it is added to the peer's dynamic table."""
    bits, first = (6, 0x40) if index else (4, 0)
    number = _NAMES.get(name, 0)
    return write_integer(number, bits, first) + (b"" if number else _text(name)) + _text(value)


def indexed(number: int) -> bytes:
    return write_integer(number, 7, 0x80)


def _text(text: str) -> bytes:
    raw = text.encode("latin-1", "replace")
    return write_integer(len(raw), 7) + raw
