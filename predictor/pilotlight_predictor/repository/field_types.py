"""Types of configuration fields, and the JSON of a message with its defaults."""

from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any, Final, Literal, NamedTuple


class ScalarType(NamedTuple):
    """Built-in type; `low` and `high` bound the integers."""

    name: Literal["string", "bool", "integer", "float"]
    default: Any
    low: int = 0
    high: int = 0


class EnumType(NamedTuple):
    """Names in the order of their numbers; the first is the default."""

    values: tuple[str, ...]


class MessageType(NamedTuple):
    """Message; a `choice` is a protobuf oneof: at most one of its fields is set, and none has a default."""

    fields: "Mapping[str, FieldType]"
    choices: tuple[tuple[str, ...], ...] = ()


ValueType = ScalarType | EnumType | MessageType


class FieldType(NamedTuple):
    """Field of a message; `key` is the type of the keys of a map, only for the shape `map`."""

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


def with_defaults(values: Mapping[str, Any], type_: MessageType) -> dict[str, Any]:
    """Return a message as Triton prints it: scalars, lists and maps always, messages and oneofs only if set."""
    in_choice = {name for choice in type_.choices for name in choice}
    result = {}
    for name, field in type_.fields.items():
        if name in values:
            result[name] = _field_with_defaults(values[name], field)
        elif name not in in_choice and not (field.shape == "one" and isinstance(field.type, MessageType)):
            result[name] = _default(field)
    return result


def _field_with_defaults(value: Any, field: FieldType) -> Any:
    if field.shape == "many":
        return [_value_with_defaults(item, field.type) for item in value]
    if field.shape == "map":
        return {str(key): _value_with_defaults(item, field.type) for key, item in value.items()}
    return _value_with_defaults(value, field.type)


def _value_with_defaults(value: Any, type_: ValueType) -> Any:
    if isinstance(type_, MessageType):
        return with_defaults(value, type_)
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"  # JSON has no such numbers
    return value


def _default(field: FieldType) -> Any:
    if field.shape != "one":
        return [] if field.shape == "many" else {}
    if isinstance(field.type, EnumType):
        return field.type.values[0]
    return {} if isinstance(field.type, MessageType) else field.type.default
