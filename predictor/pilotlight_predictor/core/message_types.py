"""Message types of protos/, for codecs, configurations and reflection; `make protos` writes them to descriptors.json.

They are not in the pool of the protobuf library, so client libraries with messages of the same names can be imported
into this process; and importing that library would cost a cold start more than all it has to read.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from msgspec import Raw, Struct, json

FILE: Final = Path(__file__).with_name("descriptors.json")


class ScalarType(NamedTuple):
    """Built-in type, with protobuf's name; `low` and `high` bound the integers."""

    name: str
    default: Any
    low: int = 0
    high: int = 0

    @property
    def is_integer(self) -> bool:
        return self.low < self.high


class EnumType(NamedTuple):
    """Names and numbers; the first is the default."""

    values: Mapping[str, int]
    name: str = "enum"


class MessageType(NamedTuple):
    """Fields in the order of the proto; a `choice` is a oneof: at most one of its fields is set, none has a default."""

    fields: "Mapping[str, FieldType]"
    choices: tuple[tuple[str, ...], ...] = ()
    name: str = "message"

    def by_number(self) -> "dict[int, tuple[str, FieldType]]":
        return {field.number: (name, field) for name, field in self.fields.items()}


ValueType = ScalarType | EnumType | MessageType


class FieldType(NamedTuple):
    """Field of a message; `key` is the type of the keys of a map, only for the shape `map`."""

    type: ValueType
    shape: Literal["one", "many", "map"] = "one"
    key: ScalarType | None = None
    number: int = 0
    chosen: bool = False  # a field of a oneof, which is encoded even if it holds the default

    @property
    def entry(self) -> MessageType:
        """Message of one entry of a map."""
        assert self.key is not None
        return MessageType({"key": FieldType(self.key, number=1), "value": FieldType(self.type, number=2)})


def _integer(name: str, bits: int) -> ScalarType:
    least = 0 if name.startswith("u") else -(1 << bits - 1)
    return ScalarType(name, 0, least, least + (1 << bits) - 1)


SCALARS: Final = {
    **{name: ScalarType(name, default) for name, default in (("string", ""), ("bytes", b""), ("bool", False))},
    **{name: ScalarType(name, 0.0) for name in ("float", "double")},
    **{name: _integer(name, int(name[-2:])) for name in ("int32", "int64", "uint32", "uint64")},
}


class FieldRow(Struct, array_like=True):
    number: int
    kind: str  # a scalar, or `message` or `enum`
    of: str = ""  # full name of the message or enum
    shape: Literal["one", "many", "map"] = "one"
    key: str = ""
    oneof: str = ""


class ProtoFile(Struct):
    """A proto, its imports, and the full names of its types, services and methods."""

    raw: bytes
    needs: tuple[str, ...]
    symbols: frozenset[str]


class _Document(Struct):
    messages: dict[str, Raw]  # rows by field, of which a start needs those of a third
    enums: dict[str, dict[str, int]]
    files: Raw


_decode_rows: Final = json.Decoder(dict[str, FieldRow]).decode


@cache
def _document() -> _Document:
    return json.decode(FILE.read_bytes(), type=_Document)


@cache
def proto_files() -> dict[str, ProtoFile]:
    return json.decode(_document().files, type=dict[str, ProtoFile])


def enum_values(name: str) -> Mapping[str, int]:
    """Return names and numbers of the enum with this full name."""
    return _document().enums[name]


@cache
def message_type(name: str) -> MessageType:
    rows = _decode_rows(_document().messages[name])
    oneofs = dict.fromkeys(row.oneof for row in rows.values() if row.oneof)
    choices = tuple(tuple(name for name, row in rows.items() if row.oneof == oneof) for oneof in oneofs)
    return MessageType({name: _field(row) for name, row in rows.items()}, choices)


def _field(row: FieldRow) -> FieldType:
    kind: ValueType
    if row.kind == "message":
        kind = message_type(row.of)
    else:
        kind = EnumType(enum_values(row.of)) if row.kind == "enum" else SCALARS[row.kind]
    return FieldType(kind, row.shape, SCALARS.get(row.key), row.number, bool(row.oneof))


def message(**fields: ValueType | FieldType) -> MessageType:
    """Return a message without a proto; its fields are numbered in their order."""
    types = (field if isinstance(field, FieldType) else FieldType(field) for field in fields.values())
    return MessageType({name: t._replace(number=n) for n, (name, t) in enumerate(zip(fields, types, strict=True), 1)})


def many(type_: ValueType) -> FieldType:
    return FieldType(type_, "many")
