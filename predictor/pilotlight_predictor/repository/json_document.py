"""Proto3 JSON of a configuration (the `config` parameter of the repository API) as a `ConfigDocument`.

Field names may have either spelling, 64-bit integers may be strings, and null means unset.
"""

import re
from typing import Any, Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.document import (
    ConfigDocument,
    Path,
    Values,
    conflicting_field,
    dotted,
    enum_value,
    expected_value,
    field_name,
    unknown_field,
)
from pilotlight_predictor.repository.field_types import EnumType, FieldType, MessageType, ScalarType, ValueType

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_FLOAT_NAMES: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def document_from_json(root: object, where: str, type_: MessageType) -> ConfigDocument:
    return ConfigDocument(_Reader(where).message(root, type_, ()), lambda path: where)


class _Reader:
    def __init__(self, where: str) -> None:
        self._where = where

    def _failure(self, path: Path, sentence: str) -> LoadFailed:
        return LoadFailed(f"{self._where}: {dotted(path)} {sentence}".replace(":  ", ": "))

    def message(self, node: object, type_: MessageType, path: Path) -> Values:
        if not isinstance(node, dict):
            raise self._failure(path, f"is {_shown(node)}, must be an object")
        values: Values = {}
        for key, item in node.items():
            if item is None:
                continue
            name = field_name(str(key), type_, path) or field_name(_snake(str(key)), type_, path)
            if name is None:
                raise LoadFailed(f"{self._where}: {unknown_field(str(key), type_, path)}")
            if name in values:
                raise self._failure((*path, name), "is given twice, in both spellings; keep one")
            if other := conflicting_field(name, values, type_):
                raise self._failure((*path, name), f"cannot stand beside {other}; keep one of them")
            values[name] = self._field(item, type_.fields[name], (*path, name))
        return values

    def _field(self, node: object, type_: FieldType, path: Path) -> Any:
        if type_.shape == "many":
            if not isinstance(node, list):
                raise self._failure(path, f"= {_shown(node)}, must be a list")
            return [self._value(item, type_.type, (*path, index)) for index, item in enumerate(node)]
        if type_.shape == "map":
            if not isinstance(node, dict):
                raise self._failure(path, f"= {_shown(node)}, must be an object")
            assert type_.key is not None
            return {
                self._value(key, type_.key, (*path, key)): self._value(item, type_.type, (*path, key))
                for key, item in node.items()
            }
        return self._value(node, type_.type, path)

    def _value(self, node: object, type_: ValueType, path: Path) -> Any:
        if isinstance(type_, MessageType):
            return self.message(node, type_, path)
        value = enum_value(node, type_) if isinstance(type_, EnumType) else _scalar(node, type_)
        if value is None:
            raise self._failure(path, f"= {_shown(node)}, must be {expected_value(type_, node)}")
        return value


def _scalar(node: object, type_: ScalarType) -> Any:
    if type_.name in {"string", "bool"}:
        return node if isinstance(node, str if type_.name == "string" else bool) else None
    if isinstance(node, bool):
        return None
    if type_.name == "float":
        return _float(node)
    if isinstance(node, str) and _INTEGER.fullmatch(node):
        node = int(node)
    if isinstance(node, float) and node.is_integer():
        node = int(node)
    return node if isinstance(node, int) and type_.low <= node <= type_.high else None


def _float(node: object) -> float | None:
    if isinstance(node, str):
        return float(node) if node in _FLOAT_NAMES or _INTEGER.fullmatch(node) else None
    try:
        return float(node) if isinstance(node, int | float) else None
    except OverflowError:
        return None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match.group(1).lower(), name)


def _shown(node: object) -> str:
    if isinstance(node, list | dict):  # repr() of a deeply nested value would exhaust the stack
        return "a list" if isinstance(node, list) else "an object"
    text = repr(node)
    return text if len(text) <= 60 else text[:57] + "…"
