"""Descriptors of the published protos: messages by name for the codec, files for reflection.

`descriptors.binpb` is protos/ as a FileDescriptorSet (`make protos`), read once. It is not in protobuf's global pool,
so client libraries with messages of the same names can be imported into this process.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight_predictor.rpc.wire import fields

FILE: Final = Path(__file__).with_name("descriptors.binpb")
REPEATED: Final = 3
# FieldDescriptorProto.Type, those that the protos use.
KINDS: Final = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 11: "message", 12: "bytes",
    13: "uint32", 14: "enum",
}  # fmt: skip


class FieldType(NamedTuple):
    """`of` is the full name of the message or enum; `oneof` fields are encoded even if they hold the default."""

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
        _read_file(pool, _view(raw))
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
    types = [_field_type(each) for each in parts.all(2)]
    is_map = any(_Parts(options).number(7) for options in parts.all(7))
    pool.messages[name] = MessageType({t.number: t for t in types}, {t.name: t for t in types}, is_map)
    for nested in parts.all(3):
        _read_message(pool, name, nested)
    for enum in parts.all(4):
        _read_enum(pool, name, enum)


def _field_type(view: memoryview) -> FieldType:
    parts = _Parts(view)
    of, repeated = parts.text(6).removeprefix("."), parts.number(4) == REPEATED
    return FieldType(parts.text(1), parts.number(3), KINDS[parts.number(5)], repeated, of, parts.has(9))


def _read_enum(pool: Descriptors, scope: str, view: memoryview) -> None:
    parts = _Parts(view)
    values = [_Parts(value) for value in parts.all(2)]
    pool.enums[_within(scope, parts.text(1))] = {value.text(1): value.number(2) for value in values}


def _within(scope: str, name: str) -> str:
    """Return the full name; the scope is empty in a file without a package."""
    return f"{scope}.{name}" if scope else name


def _view(value: int | memoryview) -> memoryview:
    assert not isinstance(value, int)
    return value


class _Parts:
    """The fields of one descriptor message, by number."""

    def __init__(self, view: memoryview) -> None:
        self._values = [(number, value) for number, _, value in fields(view)]

    def has(self, number: int) -> bool:
        return any(each == number for each, _ in self._values)

    def all(self, number: int) -> Iterator[memoryview]:
        return (_view(value) for each, value in self._values if each == number)

    def text(self, number: int) -> str:
        return next((str(value, "utf-8") for value in self.all(number)), "")

    def number(self, number: int) -> int:
        return next((value for each, value in self._values if each == number and isinstance(value, int)), 0)
