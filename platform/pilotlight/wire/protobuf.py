"""The protobuf wire format: varints, lengths and fields. Pure; malformed input raises MalformedMessage.

Unlike the protobuf library, a bytes field is a view of the message, not a copy, and there is no global descriptor pool.
"""

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_MASK: Final = (1 << 64) - 1

Field = tuple[int, int, int | memoryview]  # number, wire type, value


class MalformedMessage(ValueError):
    def __init__(self, problem: str) -> None:
        super().__init__(f"the message is not valid protobuf: {problem}")


def varint(value: int) -> bytes:
    """Encode a number; negative ones as 64 bits, as the format demands."""
    if 0 <= value < 128:
        return bytes((value,))
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def delimited(number: int, payload: bytes | memoryview) -> bytes:
    return tag(number, BYTES) + varint(len(payload)) + payload


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number and the position behind it."""
    value = shift = 0
    try:
        while True:
            byte = view[at]
            at += 1
            if byte < 0x80:
                return (value | byte << shift) & _MASK, at
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise MalformedMessage(f"the number before byte {at} is longer than 10 bytes")
    except IndexError:
        raise MalformedMessage("it ends within a number") from None


def read_field(view: memoryview, at: int) -> tuple[int, int, int | memoryview, int]:
    """Return number, wire type and value of the field at a position, and the position behind it."""
    key, at = read_varint(view, at)
    number, wire_type = key >> 3, key & 7
    if not number:
        raise MalformedMessage("a field has the number 0")
    if wire_type == VARINT:
        value, at = read_varint(view, at)
        return number, wire_type, value, at
    if wire_type == BYTES:
        length, at = read_varint(view, at)
    elif wire_type in (FIXED32, FIXED64):
        length = 4 if wire_type == FIXED32 else 8
    else:
        raise MalformedMessage(f"field {number} has wire type {wire_type}")
    end = at + length
    if end > len(view):
        raise MalformedMessage(f"field {number} claims {length} bytes, {len(view) - at} are left")
    return number, wire_type, view[at:end], end


def fields(view: memoryview) -> Iterator[Field]:
    at, end = 0, len(view)
    while at < end:
        number, wire_type, value, at = read_field(view, at)
        yield number, wire_type, value


def text(value: int | memoryview, where: str) -> str:
    try:
        return str(payload(value, where), "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessage(f"{where} is not UTF-8") from None


def payload(value: int | memoryview, where: str) -> memoryview:
    if isinstance(value, int):
        raise MalformedMessage(f"{where} is a number, must have a length")
    return value


def number(value: int | memoryview, where: str) -> int:
    if not isinstance(value, int):
        raise MalformedMessage(f"{where} must be a number")
    return value


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
