"""JSON configs and overrides.

Configuration validated against the schema: plain values with Triton's field names, and positions for errors.

`config.pbtxt` and the JSON of the repository API both become a `ConfigDocument`, so one
validation serves both. It holds only fields that were written; defaults are added by its readers.

Proto3 JSON of a configuration (the `config` parameter of the repository API) as a `ConfigDocument`.

Field names may have either spelling, 64-bit integers may be strings, and null means unset.

Configuration as Triton's configuration endpoint prints it, with Triton's defaults.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pilotlight_predictor.core.errors import LoadFailed
from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.repository.schema import (
    ALIASES,
    MODEL_CONFIG,
    EnumType,
    FieldType,
    MessageType,
    ScalarType,
    ValueType,
    with_defaults,
)

Path = tuple[str | int, ...]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """Values of a configuration, and `place`, which returns the position of a field as text."""

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
    from difflib import get_close_matches

    owner = dotted(path) or "a model configuration"
    close = get_close_matches(name, type_.fields, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(type_.fields) or 'none'}"
    return f"unknown field {name!r} in {owner}; {hint}"


def expected_value(type_: ScalarType | EnumType, value: object = None) -> str:
    """Return what a field must be, as text; for enums with a suggestion."""
    if isinstance(type_, EnumType):
        from difflib import get_close_matches

        close = get_close_matches(str(value), type_.values, n=1)
        return f"one of {', '.join(type_.values)}" + (f" (did you mean {close[0]}?)" if close else "")
    if type_.name != "integer":
        return {"string": "a string in quotes", "bool": "true or false", "float": "a number"}[type_.name]
    return f"an integer from {type_.low} to {type_.high}"


def enum_value(value: object, type_: EnumType) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return type_.values[value] if 0 <= value < len(type_.values) else None
    return value if isinstance(value, str) and value in type_.values else None


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


# Triton's backend of a platform, for `raw`; the typed view has the written values.
PLATFORM_BACKENDS: Final = {
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "caffe2_netdef": "caffe2",
}
_SEQUENCE_IDLE_US: Final = 1_000_000


def raw_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with Triton's defaults, in Triton's order."""
    full = dict(values)
    full.setdefault("backend", PLATFORM_BACKENDS.get(full.get("platform", ""), ""))
    full.setdefault("version_policy", {"latest": {"num_versions": 1}})
    largest = full.get("max_batch_size", 0)
    if "dynamic_batching" in full and largest:
        full["dynamic_batching"] = {"preferred_batch_size": [largest], **full["dynamic_batching"]}
    if "sequence_batching" in full:
        full["sequence_batching"] = {
            "max_sequence_idle_microseconds": _SEQUENCE_IDLE_US,
            **full["sequence_batching"],
        }
    if "instance_group" in full:
        full["instance_group"] = [{"count": 1, **group} for group in full["instance_group"]]
    if "ensemble_scheduling" in full:
        full["ensemble_scheduling"] = _steps_with_versions(full["ensemble_scheduling"])
    else:
        full["optimization"] = {
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            **full.get("optimization", {}),
        }
    return with_defaults(full, MODEL_CONFIG)


def _steps_with_versions(scheduling: Mapping[str, Any]) -> dict[str, Any]:
    """Write missing versions as -1 (newest): the default 0 of protobuf is a version, and the JSON may be sent back."""
    steps = [{"model_version": NEWEST, **step} for step in scheduling.get("step", [])]
    return {**scheduling, "step": steps}
