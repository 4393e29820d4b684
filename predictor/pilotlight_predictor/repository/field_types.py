"""The kinds of field that a configuration schema is made of, and how a message is printed by them.

`schema` writes its table in these words; `document` reads by them.
"""

from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any, Final, Literal, NamedTuple


class ScalarType(NamedTuple):
    """A built-in type; `low` and `high` bound the integers."""

    name: Literal["string", "bool", "integer", "float"]
    default: Any
    low: int = 0
    high: int = 0


class EnumType(NamedTuple):
    """The names in the order of their numbers, so that the first is the default."""

    values: tuple[str, ...]


class MessageType(NamedTuple):
    """A `choice` is a protobuf oneof: at most one of its fields may be set, and none is printed by default."""

    fields: "Mapping[str, FieldType]"
    choices: tuple[tuple[str, ...], ...] = ()


ValueType = ScalarType | EnumType | MessageType


class FieldType(NamedTuple):
    """`key` is the type of a map's keys and stands only with the shape `map`."""

    type: ValueType
    shape: Literal["one", "many", "map"] = "one"
    key: ScalarType | None = None


STRING: Final = ScalarType("string", "")
BOOL: Final = ScalarType("bool", False)
FLOAT: Final = ScalarType("float", 0.0)
INT32: Final = ScalarType("integer", 0, -(2**31), 2**31 - 1)
INT64: Final = ScalarType("integer", 0, -(2**63), 2**63 - 1)
UINT32: Final = ScalarType("integer", 0, 0, 2**32 - 1)
UINT64: Final = ScalarType("integer", 0, 0, 2**64 - 1)


def many(type_: ValueType) -> FieldType:
    return FieldType(type_, "many")


def mapping(key: ScalarType, type_: ValueType) -> FieldType:
    return FieldType(type_, "map", key)


def message(*choices: tuple[str, ...], **fields: ValueType | FieldType) -> MessageType:
    table = {name: f if isinstance(f, FieldType) else FieldType(f) for name, f in fields.items()}
    return MessageType(table, choices)


def printed(values: Mapping[str, Any], type_: MessageType) -> dict[str, Any]:
    """A message as Triton prints it: scalars, lists and maps always, messages and choices only where they are set."""
    chosen = {name for choice in type_.choices for name in choice}
    result = {}
    for name, field in type_.fields.items():
        if name in values:
            result[name] = _printed_field(values[name], field)
        elif name not in chosen and not (field.shape == "one" and isinstance(field.type, MessageType)):
            result[name] = _default(field)
    return result


def _printed_field(value: Any, field: FieldType) -> Any:
    if field.shape == "many":
        return [_printed_value(item, field.type) for item in value]
    if field.shape == "map":
        return {str(key): _printed_value(item, field.type) for key, item in value.items()}
    return _printed_value(value, field.type)


def _printed_value(value: Any, type_: ValueType) -> Any:
    if isinstance(type_, MessageType):
        return printed(value, type_)
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"  # JSON has no such numbers
    return value


def _default(field: FieldType) -> Any:
    if field.shape != "one":
        return [] if field.shape == "many" else {}
    if isinstance(field.type, EnumType):
        return field.type.values[0]
    return {} if isinstance(field.type, MessageType) else field.type.default
