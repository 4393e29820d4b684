"""A configuration read by the schema: plain values with Triton's field names, and the place of each for errors.

`config.pbtxt` (`pbtxt_document`) and the JSON of the repository API (`json_document`) both become a `Document`, so
there is one validation for both. Only fields that the author wrote are in it; defaults are for whoever reads them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.field_types import EnumType, MessageType, ScalarType
from pilotlight_predictor.repository.schema import ALIASES

Path = tuple[str | int, ...]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    values: Values
    place: Callable[[Path], str]

    def failure(self, path: Path, sentence: str) -> LoadFailed:
        """The error for one field: its place, its name, what is wrong and what would be right."""
        return LoadFailed(f"{self.place(path)}: {dotted(path)} {sentence}".replace(":  ", ": "))


def dotted(path: Path) -> str:
    """('input', 0, 'dims') → input[0].dims"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def field_name(name: str, type_: MessageType, path: Path) -> str | None:
    """The schema's name for what the author wrote; None when there is no such field."""
    if not path and ALIASES.get(name) in type_.fields:
        return ALIASES[name]
    return name if name in type_.fields else None


def rival(name: str, values: Values, type_: MessageType) -> str | None:
    """Another member of the same choice that is already set."""
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


def wanted(type_: ScalarType | EnumType, value: object = None) -> str:
    """What a field must be, in words; an enum's near misses get a hint."""
    if isinstance(type_, EnumType):
        return _wanted_name(type_, str(value))
    if type_.name != "integer":
        return {"string": "a string in quotes", "bool": "true or false", "float": "a number"}[type_.name]
    return f"an integer from {type_.low} to {type_.high}"


def _wanted_name(type_: EnumType, value: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(value, type_.values, n=1)
    return f"one of {', '.join(type_.values)}" + (f" (did you mean {close[0]}?)" if close else "")


def enum_value(value: object, type_: EnumType) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return type_.values[value] if 0 <= value < len(type_.values) else None
    return value if isinstance(value, str) and value in type_.values else None
