"""Encoder of TRTIS messages as protobuf text and binary, from plain values and the tables of `trtis_schema`.

Hand-written, since importing protobuf would cost more than encoding these small responses. Defaults are left out, as
in protobuf.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

Values = Mapping[str, Any]
_NAMED: Final = {
    0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x22: '\\"', 0x27: "\\'", 0x5C: "\\\\",
}  # fmt: skip
_MASK: Final = (1 << 64) - 1


class Names(NamedTuple):
    """Enum."""

    numbers: Mapping[str, int]


class Message(NamedTuple):
    """Fields in the order of their numbers; `explicit` encodes defaults too, as in entries of a map."""

    fields: "Mapping[str, Field]"
    explicit: bool = False


Kind = Literal["string", "integer", "float", "bool"] | Names | Message


class Field(NamedTuple):
    number: int
    kind: Kind
    shape: Literal["one", "many", "map"] = "one"


def many(number: int, kind: Kind) -> Field:
    return Field(number, kind, "many")


def mapping(number: int, key: Kind, value: Kind) -> Field:
    return Field(number, Message({"key": Field(1, key), "value": Field(2, value)}, explicit=True), "map")


def write_text(values: Values, type_: Message, *, one_line: bool = False) -> str:
    """Encode as protobuf's DebugString, or on one line for a header."""
    lines = list(_lines(values, type_, ""))
    return " ".join(line.strip() for line in lines) if one_line else "".join(f"{line}\n" for line in lines)


def write_binary(values: Values, type_: Message) -> bytes:
    out = bytearray()
    for name, field in type_.fields.items():
        items = _items(values.get(name), field, type_.explicit)
        if field.shape == "many" and field.kind == "integer":
            packed = b"".join(_varint(item) for item in items)
            out += _delimited(field.number, packed) if packed else b""
            continue
        for item in items:
            out += _tagged(field, item)
    return bytes(out)


def _items(value: Any, field: Field, explicit: bool) -> Iterable[Any]:
    if value is None:
        return ()
    if field.shape == "many":
        return value  # type: ignore[no-any-return]
    if field.shape == "map":
        return [{"key": key, "value": item} for key, item in value.items()]
    return (value,) if explicit or isinstance(field.kind, Message) or not _is_default(value, field.kind) else ()


def _is_default(value: Any, kind: Kind) -> bool:
    return not (kind.numbers[value] if isinstance(kind, Names) else value)


def _lines(values: Values, type_: Message, indent: str) -> Iterator[str]:
    for name, field in type_.fields.items():
        for item in _items(values.get(name), field, type_.explicit):
            if isinstance(field.kind, Message):
                yield f"{indent}{name} {{"
                yield from _lines(item, field.kind, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_word(item, field.kind)}"


def _word(value: Any, kind: Kind) -> str:
    if kind == "string":
        return quoted(value)
    if kind == "bool":
        return "true" if value else "false"
    return str(value)


def quoted(text: str) -> str:
    """Return a quoted string in ASCII, since it may be sent in a header."""
    return '"' + "".join(map(_escaped, text.encode("utf-8", "replace"))) + '"'


def _escaped(byte: int) -> str:
    if byte in _NAMED:
        return _NAMED[byte]
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def _tagged(field: Field, value: Any) -> bytes:
    number, kind = field.number, field.kind
    if isinstance(kind, Message):
        return _delimited(number, write_binary(value, kind))
    if kind == "string":
        return _delimited(number, value.encode("utf-8", "replace"))
    if kind == "float":
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(kind.numbers[value] if isinstance(kind, Names) else int(value))


def _delimited(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
