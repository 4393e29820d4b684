"""HPACK's Huffman code (RFC 7541, appendix B), decoded a byte at a time.

The code is canonical: codes of one length are consecutive in the order of their symbols, and longer codes follow
shorter ones, so the symbols of each length define it. A node of the code tree is written as its path in bits behind a
leading 1. The transition of a node by a byte is computed bit by bit when it first occurs, and cached.
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
