"""Configuration validated against the schema: plain values with Triton's field names, and positions for errors.

`config.pbtxt` and the JSON of the repository API both become a `ConfigDocument`, so one
validation serves both. It holds only fields that were written; defaults are added by its readers.
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
