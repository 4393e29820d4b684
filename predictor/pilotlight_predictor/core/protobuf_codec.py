"""Protobuf messages ↔ dictionaries by their types, for all methods but inference, which has its own codecs. Pure."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from pilotlight.wire import protobuf
from pilotlight.wire.http1 import Buffer
from pilotlight.wire.protobuf import BYTES, FIXED32, FIXED64, VARINT, MalformedMessage, fields
from pilotlight_predictor.core.message_types import EnumType, FieldType, MessageType, ValueType, message_type
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.errors import BadRequest

MAX_DEPTH: Final = 32
MAX_FIELDS: Final = 10_000  # of a message; no model needs more
_SLICE: Final = 1 << 20  # bytes of packed numbers that are unpacked at once: in 20 times as much memory
Message = dict[str, Any]  # without fields that are not on the wire; enums as numbers, or names to encode
_WIRE_TYPES: Final = {"double": FIXED64, "float": FIXED32, "string": BYTES, "bytes": BYTES, "message": BYTES}
_FLOATS: Final = {"double": struct.Struct("<d"), "float": struct.Struct("<f")}


def decode(name: str, body: Buffer) -> Message:
    """Decode the message with this full name; unknown fields are skipped. Raise BadRequest if it is malformed."""
    try:
        return _decode(message_type(name), body, 0)
    except MalformedMessage as error:
        raise BadRequest(str(error)) from None


def limited_fields(view: memoryview, most: int = MAX_FIELDS) -> Iterator[protobuf.Field]:
    """Yield at most that many fields, since each costs as much as a kilobyte of tensor data. Raise BadRequest."""
    for count, field in enumerate(fields(view)):
        if count == most:
            raise BadRequest(f"a message has more than {most} fields beside its tensors' contents")
        yield field


def _decode(type_: MessageType, body: Buffer, depth: int) -> Message:
    if depth > MAX_DEPTH:
        raise MalformedMessage(f"it is nested deeper than {MAX_DEPTH} levels")
    types, message = type_.by_number(), Message()
    for number, wire_type, value in limited_fields(memoryview(body)):
        if number in types:
            name, field = types[number]
            _store(message, name, field, wire_type, value, depth)
    return message


def _store(message: Message, name: str, field: FieldType, wire_type: int, value: int | memoryview, depth: int) -> None:
    expected = _WIRE_TYPES.get(field.type.name, VARINT)
    if field.shape == "one":
        if wire_type != expected:
            raise MalformedMessage(f"field {name} has wire type {wire_type}, must be {expected}")
        message[name] = _read(name, field.type, value, depth)
    elif field.shape == "map":
        entry = _decode(field.entry, protobuf.payload(value, name), depth + 1)
        message.setdefault(name, {})[entry.get("key", "")] = entry.get("value", {})
    elif wire_type == BYTES and expected != BYTES:
        message.setdefault(name, []).extend(_unpack(name, field.type, protobuf.payload(value, name)))
    else:
        message.setdefault(name, []).append(_read(name, field.type, value, depth))


def _read(name: str, type_: ValueType, value: int | memoryview, depth: int) -> Any:
    if isinstance(type_, MessageType):
        return _decode(type_, protobuf.payload(value, name), depth + 1)
    if type_.name == "string":
        return protobuf.text(value, name)
    if type_.name == "bytes":
        return bytes(protobuf.payload(value, name))
    if type_.name in _FLOATS:
        return _FLOATS[type_.name].unpack(protobuf.payload(value, name))[0]
    return _integer(type_, protobuf.number(value, name))


def _integer(type_: ValueType, value: int) -> int | bool:
    if type_.name == "bool":
        return bool(value)
    return protobuf.signed(value) if type_.name in {"int32", "int64", "enum"} else value


def _unpack(name: str, type_: ValueType, data: memoryview) -> list[Any]:
    if type_.name not in _FLOATS:
        return [_integer(type_, value) for value in unpack_varints(data, name).tolist()]
    if len(data) % _FLOATS[type_.name].size:
        raise MalformedMessage(f"field {name} ends within a number")
    return [value for (value,) in _FLOATS[type_.name].iter_unpack(data)]


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


def encode(type_: str | MessageType, message: Mapping[str, Any]) -> bytes:
    """Encode a message of this type, or full name; keys that it does not have are left out, such as newer fields of a
    config, and so are defaults."""
    types = message_type(type_).fields if isinstance(type_, str) else type_.fields
    return b"".join(_field(types[key], value) for key, value in message.items() if key in types and value is not None)


def _field(field: FieldType, value: Any) -> bytes:
    number, type_ = field.number, field.type
    if field.shape == "map":
        entries = ({"key": key, "value": each} for key, each in value.items())
        return b"".join(protobuf.delimited(number, encode(field.entry, entry)) for entry in entries)
    expected = _WIRE_TYPES.get(type_.name, VARINT)
    if field.shape == "many" and expected != BYTES:
        packed = b"".join(_value(type_, each) for each in value)
        return protobuf.delimited(number, packed) if packed else b""
    if field.shape == "one" and not (value or field.chosen or isinstance(type_, MessageType)):
        return b""
    values = [_value(type_, each) for each in (value if field.shape == "many" else (value,))]
    if expected == BYTES:
        return b"".join(protobuf.delimited(number, each) for each in values)
    return protobuf.tag(number, expected) + values[0]


def _value(type_: ValueType, value: Any) -> bytes:
    """Encode a value without its tag. A number may be a string, as JSON has 64-bit numbers and map keys."""
    if isinstance(type_, MessageType):
        return encode(type_, value)
    if isinstance(type_, EnumType):
        return protobuf.varint(type_.values[value] if isinstance(value, str) else value)
    if type_.name in _FLOATS:
        return _FLOATS[type_.name].pack(value)
    if type_.name in {"string", "bytes"}:
        return value.encode("utf-8", "replace") if isinstance(value, str) else bytes(value)
    return protobuf.varint(int(value))
