"""Image sizes from file headers, for formats whose decoders allocate memory before they report the size. Pure."""

import struct
from collections.abc import Iterator
from typing import Final

_BLOCKS_OF_GIF: Final = {0x21: "extension", 0x2C: "frame", 0x3B: "end"}


def webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the canvas; 0, 0 for a truncated or invalid file."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", body[6:10])
    return width & 0x3FFF, height & 0x3FFF


def gif_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the extent of each frame, which may exceed the screen and which decoders then allocate."""
    width, height, flags = struct.unpack("<HHB", data[6:11].ljust(5, b"\0"))
    at = 13 + _colours(flags)
    while at < len(data) and data[at] in _BLOCKS_OF_GIF and data[at] != 0x3B:
        if data[at] == 0x21:
            at = _after_blocks(data, at + 2)
            continue
        left, top, wide, high, local = struct.unpack("<HHHHB", data[at + 1 : at + 10].ljust(9, b"\0"))
        yield max(width, left + wide), max(height, top + high)
        at = _after_blocks(data, at + 11 + _colours(local))


def _colours(flags: int) -> int:
    """Return the size of the colour table in bytes, from the flags."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while at < len(data) and data[at]:
        at += data[at] + 1
    return at + 1
