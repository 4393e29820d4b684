"""Protobuf messages by name ↔ dictionaries, for all methods but inference, which has its own codecs. Pure.

A field that is not on the wire is not in the dictionary. Enums are encoded by name or number and decoded as numbers.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.rpc import wire
from pilotlight_predictor.rpc.descriptors import FieldType, descriptors
from pilotlight_predictor.rpc.wire import BYTES, FIXED32, FIXED64, VARINT, malformed

MAX_DEPTH: Final = 32
Message = dict[str, Any]
_WIRE_TYPES: Final = {"double": FIXED64, "float": FIXED32, "string": BYTES, "bytes": BYTES, "message": BYTES}
_FLOATS: Final = {"double": struct.Struct("<d"), "float": struct.Struct("<f")}


def decode(name: str, body: Buffer, depth: int = 0) -> Message:
    """Decode a message; unknown fields are skipped. Raise BadRequest if it is malformed."""
    if depth > MAX_DEPTH:
        raise malformed(f"it is nested more than {MAX_DEPTH} deep")
    types, message = descriptors().messages[name].by_number, Message()
    for number, wire_type, value in wire.fields(memoryview(body)):
        kind = types.get(number)
        if kind is not None:
            _store(message, kind, wire_type, value, depth)
    return message


def _store(message: Message, kind: FieldType, wire_type: int, value: int | memoryview, depth: int) -> None:
    expected = _WIRE_TYPES.get(kind.kind, VARINT)
    if not kind.repeated:
        if wire_type != expected:
            raise malformed(f"field {kind.name} has wire type {wire_type}, must be {expected}")
        message[kind.name] = _read(kind, value, depth)
    elif kind.kind == "message" and descriptors().messages[kind.of].is_map:
        entry = decode(kind.of, wire.payload(value, kind.name), depth + 1)
        message.setdefault(kind.name, {})[entry.get("key", "")] = entry.get("value", {})
    elif wire_type == BYTES and expected != BYTES:
        message.setdefault(kind.name, []).extend(_unpack(kind, wire.payload(value, kind.name)))
    else:
        message.setdefault(kind.name, []).append(_read(kind, value, depth))


def _read(kind: FieldType, value: int | memoryview, depth: int) -> Any:
    if kind.kind == "message":
        return decode(kind.of, wire.payload(value, kind.name), depth + 1)
    if kind.kind == "string":
        return wire.text(value, kind.name)
    if kind.kind == "bytes":
        return bytes(wire.payload(value, kind.name))
    if kind.kind in _FLOATS:
        return _FLOATS[kind.kind].unpack(wire.payload(value, kind.name))[0]
    return _integer(kind, wire.number(value, kind.name))


def _integer(kind: FieldType, value: int) -> int | bool:
    if kind.kind == "bool":
        return bool(value)
    return wire.signed(value) if kind.kind in {"int32", "int64", "enum"} else value


def _unpack(kind: FieldType, data: memoryview) -> list[Any]:
    if kind.kind in _FLOATS:
        form = _FLOATS[kind.kind]
        if len(data) % form.size:
            raise malformed(f"field {kind.name} ends within a number")
        return [value for (value,) in form.iter_unpack(data)]
    return [_integer(kind, value) for value in wire.unpack_varints(data, kind.name).tolist()]


def encode(name: str, message: Mapping[str, Any]) -> bytes:
    """Encode a message; keys that the message type does not have are left out, such as newer fields of a config."""
    types = descriptors().messages[name].by_name
    return b"".join(_field(types[key], value) for key, value in message.items() if key in types and value is not None)


def _field(kind: FieldType, value: Any) -> bytes:
    if isinstance(value, Mapping) and kind.repeated:
        entries = ({"key": key, "value": each} for key, each in value.items())
        return b"".join(wire.delimited(kind.number, encode(kind.of, entry)) for entry in entries)
    write = _writer(kind)
    if not kind.repeated:
        return write(value) if value or kind.oneof or kind.kind == "message" else b""
    if kind.kind in {"string", "bytes", "message"}:
        return b"".join(map(write, value))
    packed = b"".join(_scalar(kind, each) for each in value)
    return wire.delimited(kind.number, packed) if packed else b""


def _writer(kind: FieldType) -> Callable[[Any], bytes]:
    if kind.kind == "message":
        return lambda value: wire.delimited(kind.number, encode(kind.of, value))
    if kind.kind in {"string", "bytes"}:
        return lambda value: wire.delimited(kind.number, value.encode() if isinstance(value, str) else bytes(value))
    start = wire.tag(kind.number, _WIRE_TYPES.get(kind.kind, VARINT))
    return lambda value: start + _scalar(kind, value)


def _scalar(kind: FieldType, value: Any) -> bytes:
    """Encode a number; it may be a string, as JSON has 64-bit numbers and map keys."""
    if kind.kind in _FLOATS:
        return _FLOATS[kind.kind].pack(value)
    if kind.kind == "enum" and isinstance(value, str):
        return wire.varint(descriptors().enums[kind.of][value])
    return wire.varint(int(value))
