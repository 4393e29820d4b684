"""Protobuf messages by name ↔ dictionaries, for all methods but inference, which has its own codecs. Pure.

`descriptors.binpb` is protos/ as a FileDescriptorSet (`make protos`), read once. It is not in protobuf's global pool,
so client libraries with messages of the same names can be imported into this process.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight.wire import protobuf
from pilotlight.wire.http1 import Buffer
from pilotlight.wire.protobuf import BYTES, FIXED32, FIXED64, VARINT, MalformedMessage, fields
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.errors import BadRequest

FILE: Final = Path(__file__).with_name("descriptors.binpb")
REPEATED: Final = 3
# FieldDescriptorProto.Type, those that the protos use.
KINDS: Final = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 11: "message", 12: "bytes",
    13: "uint32", 14: "enum",
}  # fmt: skip
MAX_DEPTH: Final = 32
MAX_FIELDS: Final = 10_000  # of a message; no model needs more
_SLICE: Final = 1 << 20  # bytes of packed numbers that are unpacked at once: in 20 times as much memory
Message = dict[str, Any]  # without fields that are not on the wire; enums as numbers, or names to encode
_WIRE_TYPES: Final = {"double": FIXED64, "float": FIXED32, "string": BYTES, "bytes": BYTES, "message": BYTES}
_FLOATS: Final = {"double": struct.Struct("<d"), "float": struct.Struct("<f")}


class FieldType(NamedTuple):
    """Field; `of` is the full name of its message or enum; `oneof` fields are encoded even if they hold the default."""

    name: str
    number: int
    kind: str
    repeated: bool
    of: str
    oneof: bool


class MessageType(NamedTuple):
    by_number: dict[int, FieldType]
    by_name: dict[str, FieldType]
    is_map: bool


class ProtoFile(NamedTuple):
    name: str
    raw: bytes
    needs: tuple[str, ...]
    symbols: frozenset[str]
    services: tuple[str, ...]


class Descriptors(NamedTuple):
    files: dict[str, ProtoFile]
    messages: dict[str, MessageType]
    enums: dict[str, dict[str, int]]


@cache
def descriptors() -> Descriptors:
    pool = Descriptors({}, {}, {})
    for _, _, raw in fields(memoryview(FILE.read_bytes())):
        _read_file(pool, protobuf.payload(raw, "file"))
    return pool


def _read_file(pool: Descriptors, view: memoryview) -> None:
    parts = _Parts(view)
    package = parts.text(2)
    before = {*pool.messages, *pool.enums}
    for message in parts.all(4):
        _read_message(pool, package, message)
    for enum in parts.all(5):
        _read_enum(pool, package, enum)
    services = tuple(_within(package, _Parts(service).text(1)) for service in parts.all(6))
    methods = {
        f"{name}.{_Parts(method).text(1)}"
        for name, service in zip(services, parts.all(6), strict=True)
        for method in _Parts(service).all(2)
    }
    symbols = frozenset(({*pool.messages, *pool.enums} - before) | set(services) | methods)
    needs = tuple(str(name, "utf-8") for name in parts.all(3))
    pool.files[parts.text(1)] = ProtoFile(parts.text(1), bytes(view), needs, symbols, services)


def _read_message(pool: Descriptors, scope: str, view: memoryview) -> None:
    parts = _Parts(view)
    name = _within(scope, parts.text(1))
    types = [
        FieldType(
            field.text(1), field.number(3), KINDS[field.number(5)], field.number(4) == REPEATED,
            field.text(6).removeprefix("."), field.has(9),
        )
        for field in map(_Parts, parts.all(2))
    ]  # fmt: skip
    is_map = any(_Parts(options).number(7) for options in parts.all(7))
    pool.messages[name] = MessageType({t.number: t for t in types}, {t.name: t for t in types}, is_map)
    for nested in parts.all(3):
        _read_message(pool, name, nested)
    for enum in parts.all(4):
        _read_enum(pool, name, enum)


def _read_enum(pool: Descriptors, scope: str, view: memoryview) -> None:
    parts = _Parts(view)
    values = [_Parts(value) for value in parts.all(2)]
    pool.enums[_within(scope, parts.text(1))] = {value.text(1): value.number(2) for value in values}


def _within(scope: str, name: str) -> str:
    """Return the full name; the scope is empty in a file without a package."""
    return f"{scope}.{name}" if scope else name


class _Parts:
    """The fields of one descriptor message, by number."""

    def __init__(self, view: memoryview) -> None:
        self._values = [(number, value) for number, _, value in fields(view)]

    def has(self, number: int) -> bool:
        return any(each == number for each, _ in self._values)

    def all(self, number: int) -> Iterator[memoryview]:
        return (value for each, value in self._values if each == number and not isinstance(value, int))

    def text(self, number: int) -> str:
        return next((str(value, "utf-8") for value in self.all(number)), "")

    def number(self, number: int) -> int:
        return next((value for each, value in self._values if each == number and isinstance(value, int)), 0)


def decode(name: str, body: Buffer) -> Message:
    """Decode a message; unknown fields are skipped. Raise BadRequest if it is malformed."""
    try:
        return _decode(name, body, 0)
    except MalformedMessage as error:
        raise BadRequest(str(error)) from None


def limited_fields(view: memoryview, most: int = MAX_FIELDS) -> Iterator[protobuf.Field]:
    """Yield at most that many fields, since each costs as much as a kilobyte of tensor data. Raise BadRequest."""
    for count, field in enumerate(fields(view)):
        if count == most:
            raise BadRequest(f"a message has more than {most} fields beside its tensors' contents")
        yield field


def _decode(name: str, body: Buffer, depth: int) -> Message:
    if depth > MAX_DEPTH:
        raise MalformedMessage(f"it is nested more than {MAX_DEPTH} deep")
    types, message = descriptors().messages[name].by_number, Message()
    for number, wire_type, value in limited_fields(memoryview(body)):
        kind = types.get(number)
        if kind is not None:
            _store(message, kind, wire_type, value, depth)
    return message


def _store(message: Message, kind: FieldType, wire_type: int, value: int | memoryview, depth: int) -> None:
    expected = _WIRE_TYPES.get(kind.kind, VARINT)
    if not kind.repeated:
        if wire_type != expected:
            raise MalformedMessage(f"field {kind.name} has wire type {wire_type}, must be {expected}")
        message[kind.name] = _read(kind, value, depth)
    elif kind.kind == "message" and descriptors().messages[kind.of].is_map:
        entry = _decode(kind.of, protobuf.payload(value, kind.name), depth + 1)
        message.setdefault(kind.name, {})[entry.get("key", "")] = entry.get("value", {})
    elif wire_type == BYTES and expected != BYTES:
        message.setdefault(kind.name, []).extend(_unpack(kind, protobuf.payload(value, kind.name)))
    else:
        message.setdefault(kind.name, []).append(_read(kind, value, depth))


def _read(kind: FieldType, value: int | memoryview, depth: int) -> Any:
    if kind.kind == "message":
        return _decode(kind.of, protobuf.payload(value, kind.name), depth + 1)
    if kind.kind == "string":
        return protobuf.text(value, kind.name)
    if kind.kind == "bytes":
        return bytes(protobuf.payload(value, kind.name))
    if kind.kind in _FLOATS:
        return _FLOATS[kind.kind].unpack(protobuf.payload(value, kind.name))[0]
    return _integer(kind, protobuf.number(value, kind.name))


def _integer(kind: FieldType, value: int) -> int | bool:
    if kind.kind == "bool":
        return bool(value)
    return protobuf.signed(value) if kind.kind in {"int32", "int64", "enum"} else value


def _unpack(kind: FieldType, data: memoryview) -> list[Any]:
    if kind.kind not in _FLOATS:
        return [_integer(kind, value) for value in unpack_varints(data, kind.name).tolist()]
    if len(data) % _FLOATS[kind.kind].size:
        raise MalformedMessage(f"field {kind.name} ends within a number")
    return [value for (value,) in _FLOATS[kind.kind].iter_unpack(data)]


def unpack_varints(data: memoryview, where: str) -> Array:
    """Return packed numbers as uint64, vectorised: a Python loop takes a second for a million of them."""
    if len(data) <= _SLICE:
        return _unpack_slice(data, where)
    arrays, start = [], 0
    while start < len(data):
        end = start + _SLICE
        for _ in range(10):  # bytes of a number at most
            if end >= len(data) or data[end - 1] < 0x80:
                break
            end += 1
        arrays.append(_unpack_slice(data[start:end], where))
        start = end
    return np.concatenate(arrays)


def _unpack_slice(data: memoryview, where: str) -> Array:
    raw = np.frombuffer(data, np.uint8)
    if not raw.size:
        return np.empty(0, np.uint64)
    ends = np.flatnonzero(raw < 0x80)
    if not ends.size or ends[-1] != raw.size - 1:
        raise MalformedMessage(f"{where} ends within a number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise MalformedMessage(f"{where} has a number that is longer than 10 bytes")
    position = np.arange(raw.size) - np.repeat(starts, lengths)
    parts = (raw & 0x7F).astype(np.uint64) << (7 * position).astype(np.uint64)
    sums: Array = np.add.reduceat(parts, starts)
    return sums


def encode(name: str, message: Mapping[str, Any]) -> bytes:
    """Encode a message; keys that the message type does not have are left out, such as newer fields of a config."""
    types = descriptors().messages[name].by_name
    return b"".join(_field(types[key], value) for key, value in message.items() if key in types and value is not None)


def _field(kind: FieldType, value: Any) -> bytes:
    if isinstance(value, Mapping) and kind.repeated:
        entries = ({"key": key, "value": each} for key, each in value.items())
        return b"".join(protobuf.delimited(kind.number, encode(kind.of, entry)) for entry in entries)
    write = _writer(kind)
    if not kind.repeated:
        return write(value) if value or kind.oneof or kind.kind == "message" else b""
    if kind.kind in {"string", "bytes", "message"}:
        return b"".join(map(write, value))
    packed = b"".join(_scalar(kind, each) for each in value)
    return protobuf.delimited(kind.number, packed) if packed else b""


def _writer(kind: FieldType) -> Callable[[Any], bytes]:
    if kind.kind == "message":
        return lambda value: protobuf.delimited(kind.number, encode(kind.of, value))
    if kind.kind in {"string", "bytes"}:
        return lambda value: protobuf.delimited(kind.number, value.encode() if isinstance(value, str) else bytes(value))
    start = protobuf.tag(kind.number, _WIRE_TYPES.get(kind.kind, VARINT))
    return lambda value: start + _scalar(kind, value)


def _scalar(kind: FieldType, value: Any) -> bytes:
    """Encode a number; it may be a string, as JSON has 64-bit numbers and map keys."""
    if kind.kind in _FLOATS:
        return _FLOATS[kind.kind].pack(value)
    if kind.kind == "enum" and isinstance(value, str):
        return protobuf.varint(descriptors().enums[kind.of][value])
    return protobuf.varint(int(value))
