"""Configuration checked by the schema: plain values with Triton's field names, and positions for errors.

`config.pbtxt` and the JSON of the repository API both become a `ConfigDocument`, which one validation serves. It holds
only fields that were written; defaults are added by its readers.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.wire.messages import suggestion
from pilotlight_predictor.core.message_types import EnumType, FieldType, MessageType, ScalarType, ValueType
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.schema import ALIASES

Path = tuple[str | int, ...]
Values = dict[str, Any]
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_FLOAT_NAMES: Final = frozenset({"NaN", "Infinity", "-Infinity"})


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """Values of a configuration, and `position`, which returns the position of a field as text."""

    values: Values
    position: Callable[[Path], str]

    def failure(self, path: Path, sentence: str) -> LoadFailed:
        """Return the error of one field: position, name, problem and fix."""
        return LoadFailed(f"{self.position(path)}: {dotted(path)} {sentence}".replace(":  ", ": "))


def dotted(path: Path) -> str:
    """Return a path as text: ('input', 0, 'dims') → input[0].dims."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def field_name(name: str, type_: MessageType, path: Path) -> str | None:
    """Return the name of a field in the schema; None if there is no such field."""
    if not path and ALIASES.get(name) in type_.fields:
        return ALIASES[name]
    return name if name in type_.fields else None


def conflicting_field(name: str, values: Values, type_: MessageType) -> str | None:
    """Return another member of the same oneof that is already set."""
    for choice in type_.choices:
        if name in choice:
            return next((other for other in choice if other in values and other != name), None)
    return None


def unknown_field(name: str, type_: MessageType, path: Path) -> str:
    owner = f" in {dotted(path)}" if path else ""
    hint = suggestion(name, type_.fields) or f"; known: {', '.join(type_.fields) or 'none'}"
    return f"unknown field {name!r}{owner}{hint}"


def expected_value(type_: ScalarType | EnumType, value: object = None) -> str:
    """Return what a field must be, as text; for enums with a suggestion."""
    if isinstance(type_, EnumType):
        return f"one of {', '.join(type_.values)}{suggestion(str(value), type_.values)}"
    if type_.is_integer:
        return f"an integer from {type_.low} to {type_.high}"
    return {"string": "a string in quotes", "bool": "true or false"}.get(type_.name, "a number")


def enum_value(value: object, type_: EnumType) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return next((name for name, number in type_.values.items() if number == value), None)
    return value if isinstance(value, str) and value in type_.values else None


def document_from_json(root: object, where: str, type_: MessageType) -> ConfigDocument:
    """Read proto3 JSON: field names in either spelling, 64-bit integers maybe as strings, null means unset."""
    document = ConfigDocument({}, lambda path: where)
    document.values.update(_message(document, root, type_, ()))
    return document


def _message(document: ConfigDocument, node: object, type_: MessageType, path: Path) -> Values:
    if not isinstance(node, dict):
        raise document.failure(path, f"is {_shown(node)}, must be an object")
    values: Values = {}
    for key, item in node.items():
        if item is None:
            continue
        snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match.group(1).lower(), str(key))
        name = field_name(str(key), type_, path) or field_name(snake, type_, path)
        if name is None:
            raise LoadFailed(f"{document.position(path)}: {unknown_field(str(key), type_, path)}")
        if name in values:
            raise document.failure((*path, name), "is set twice, in both spellings; keep one")
        if other := conflicting_field(name, values, type_):
            raise document.failure((*path, name), f"cannot be combined with {other}; keep one")
        values[name] = _field(document, item, type_.fields[name], (*path, name))
    return values


def _field(document: ConfigDocument, node: object, type_: FieldType, path: Path) -> Any:
    if type_.shape == "many":
        if not isinstance(node, list):
            raise document.failure(path, f"= {_shown(node)}, must be a list")
        return [_value(document, item, type_.type, (*path, index)) for index, item in enumerate(node)]
    if type_.shape == "map":
        if not isinstance(node, dict):
            raise document.failure(path, f"= {_shown(node)}, must be an object")
        assert type_.key is not None
        return {
            _value(document, key, type_.key, (*path, key)): _value(document, item, type_.type, (*path, key))
            for key, item in node.items()
        }
    return _value(document, node, type_.type, path)


def _value(document: ConfigDocument, node: object, type_: ValueType, path: Path) -> Any:
    if isinstance(type_, MessageType):
        return _message(document, node, type_, path)
    value = enum_value(node, type_) if isinstance(type_, EnumType) else _scalar(node, type_)
    if value is None:
        raise document.failure(path, f"= {_shown(node)}, must be {expected_value(type_, node)}")
    return value


def _scalar(node: object, type_: ScalarType) -> Any:
    if type_.name in {"string", "bool"}:
        return node if isinstance(node, str if type_.name == "string" else bool) else None
    if isinstance(node, bool):
        return None
    if not type_.is_integer:
        known = not isinstance(node, str) or node in _FLOAT_NAMES or _INTEGER.fullmatch(node)
        try:
            return float(node) if known and isinstance(node, str | int | float) else None
        except OverflowError:
            return None
    if isinstance(node, str) and _INTEGER.fullmatch(node):
        node = int(node)
    if isinstance(node, float) and node.is_integer():
        node = int(node)
    return node if isinstance(node, int) and type_.low <= node <= type_.high else None


def _shown(node: object) -> str:
    if isinstance(node, list | dict):  # repr() of a deeply nested value would exhaust the stack
        return "a list" if isinstance(node, list) else "an object"
    text = repr(node)
    return text if len(text) <= 60 else text[:57] + "…"
