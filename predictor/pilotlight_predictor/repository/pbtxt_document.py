"""Tree of a `config.pbtxt` as a `ConfigDocument`: values validated against the schema, positions recorded."""

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
from pilotlight_predictor.repository.pbtxt import PbtxtField, PbtxtMessage, Scalar, SourcePosition

_BOOLS: Final = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}
_INFINITE: Final = re.compile(r"-?(?:inf(?:inity)?|nan)", re.IGNORECASE)


def document_from_message(root: PbtxtMessage, type_: MessageType) -> ConfigDocument:
    places: dict[Path, SourcePosition] = {(): root.position}

    def place(path: Path) -> str:
        while path not in places:
            path = path[:-1]
        return str(places[path])

    return ConfigDocument(_Reader(places).message(root, type_, ()), place)


class _Reader:
    def __init__(self, places: dict[Path, SourcePosition]) -> None:
        self._places = places

    def message(self, node: PbtxtMessage, type_: MessageType, path: Path) -> Values:
        values: Values = {}
        for field in node.fields:
            name = field_name(field.name, type_, path)
            if name is None:
                raise LoadFailed(f"{field.position}: {unknown_field(field.name, type_, path)}")
            if other := conflicting_field(name, values, type_):
                raise LoadFailed(
                    f"{field.position}: {dotted((*path, name))} cannot stand beside {other}; keep one of them"
                )
            self._places.setdefault((*path, name), field.position)
            self._add(field, type_.fields[name], values, (*path, name))
        return values

    def _add(self, field: PbtxtField, type_: FieldType, values: Values, path: Path) -> None:
        name = str(path[-1])
        if type_.shape == "many":
            items = values.setdefault(name, [])
            for value in field.values:
                items.append(self._value(value, type_.type, (*path, len(items))))
        elif field.listed and type_.shape == "one":
            raise LoadFailed(f"{field.position}: {dotted(path)} takes one value, not a list in [ ]")
        elif type_.shape == "map":
            entries = values.setdefault(name, {})
            for value in field.values:
                self._entry(value, type_, entries, path)
        elif name in values:
            raise LoadFailed(f"{field.position}: {dotted(path)} is given twice; keep one")
        else:
            values[name] = self._value(field.values[0], type_.type, path)

    def _entry(self, node: Scalar | PbtxtMessage, type_: FieldType, entries: dict[Any, Any], path: Path) -> None:
        assert type_.key is not None
        if isinstance(node, Scalar):
            raise LoadFailed(f"{node.position}: {dotted(path)} = {node.text}, must be {{ key: … value: … }}")
        entry = MessageType({"key": FieldType(type_.key), "value": FieldType(type_.type)})
        inner = _Reader({})
        values = inner.message(node, entry, path)
        key = values.get("key", type_.key.default)
        self._places[(*path, str(key))] = node.position
        for inner_path, place in inner._places.items():
            if inner_path[len(path)] == "value":
                self._places[(*path, str(key), *inner_path[len(path) + 1 :])] = place
        entries[key] = values.get("value", {} if isinstance(type_.type, MessageType) else "")

    def _value(self, node: Scalar | PbtxtMessage, type_: ValueType, path: Path) -> Any:
        self._places[path] = node.position
        if isinstance(type_, MessageType):
            if isinstance(node, PbtxtMessage):
                return self.message(node, type_, path)
            raise LoadFailed(f"{node.position}: {dotted(path)} = {node.text}, must be a message in {{ }}")
        if isinstance(node, PbtxtMessage):
            raise LoadFailed(f"{node.position}: {dotted(path)} is a message, must be {expected_value(type_)}")
        value = enum_value(node.value, type_) if isinstance(type_, EnumType) else _scalar(node, type_)
        if value is None:
            raise LoadFailed(
                f"{node.position}: {dotted(path)} = {node.text}, must be {expected_value(type_, node.value)}"
            )
        return value


def _scalar(node: Scalar, type_: ScalarType) -> Any:
    value = node.value
    if type_.name == "string":
        return _text(value) if isinstance(value, bytes) else None
    if type_.name == "integer":
        return value if isinstance(value, int) and type_.low <= value <= type_.high else None
    if type_.name == "bool":
        return {0: False, 1: True}.get(value) if isinstance(value, int) else _BOOLS.get(str(value))
    if isinstance(value, str):
        return float(value) if _INFINITE.fullmatch(value) else None
    return float(value) if isinstance(value, int | float) else None


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
