"""HPACK's Huffman code (RFC 7541, appendix B), read a byte at a time.

The code is canonical: codes of one length follow each other in the order of their symbols, and longer codes follow
shorter ones. So the symbols of each length are all that needs to be written down. Bits that are not yet a code are a
node of its tree, written as a number whose first bit is a one before them; what a byte means at a node is worked out
bit by bit when both meet first, and remembered.
"""

from functools import lru_cache
from typing import Final

EOS: Final = 256
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
    """The symbol at each node where a code ends."""
    found, code, before = {}, 0, 0
    for length, symbols in _BY_LENGTH.items():
        code <<= length - before
        for symbol in symbols:
            found[1 << length | code] = symbol
            code += 1
        before = length
    return found


_CODES: Final = _codes()
_STEPS: Final[dict[int, tuple[bytes, int]]] = {}  # by node and byte: the text that it completes, and where it leads


def _step(node: int, byte: int) -> tuple[bytes, int]:
    key, text = node << 8 | byte, bytearray()
    for place in range(7, -1, -1):
        node = node << 1 | byte >> place & 1
        symbol = _CODES.get(node)
        if symbol == EOS:
            raise ValueError("a Huffman string holds EOS")
        if symbol is not None:
            text.append(symbol)
            node = _ROOT
    step = _STEPS[key] = bytes(text), node
    return step


@lru_cache(1024)
def decode_short(data: bytes) -> bytes:
    """As `decode`, for what is likely to come again."""
    return decode(data)


def decode(data: bytes) -> bytes:
    """Raises ValueError where the bits are no code, or padding is not the beginning of EOS and shorter than a byte."""
    text, node, known = bytearray(), _ROOT, _STEPS
    for byte in data:
        more, node = known.get(node << 8 | byte) or _step(node, byte)
        text += more
    if node & node + 1 or node > 0xFF:
        raise ValueError("a Huffman string ends within a code")
    return bytes(text)
