"""Typed access to manifest fields: durations, quantities and counts; errors name object, field and fix."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight import quantities
from pilotlight.errors import UsageError

Json = Any
MAX_INT32: Final = 2**31 - 1


def object_name(manifest: Mapping[str, Json]) -> str:
    return f"{manifest.get('kind') or 'object'} {(manifest.get('metadata') or {}).get('name') or 'without a name'}"


def seconds_of(text: str) -> float | None:
    """Parse a duration; None if invalid or signed."""
    seconds = quantities.parse_duration(text)
    return None if seconds is None or text.startswith(("+", "-")) else seconds


def quantity_of(text: str) -> float | None:
    value = quantities.parse_quantity(text)
    return None if value is None else float(value)


class Fields:
    """Fields of one part of an object. Absent and null read as the default."""

    def __init__(self, owner: str, path: str, values: Mapping[str, Json] | None) -> None:
        self.owner, self.path, self._values = owner, path, values or {}

    def error(self, key: str, must: str) -> UsageError:
        value = self._values.get(key)
        return UsageError(f"{self.owner}: {self._path(key)} = {value if value is not None else 'nothing'}, {must}")

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def text(self, key: str, default: str = "") -> str:
        value = self._values.get(key)
        return default if value is None else str(value)

    def flag(self, key: str, default: bool = False) -> bool:
        text = self.text(key, str(default)).lower()
        if text not in ("true", "false"):
            raise self.error(key, "must be true or false")
        return text == "true"

    def one_of(self, key: str, default: str, *choices: str) -> str:
        value = self.text(key) or default
        if value not in choices:
            raise self.error(key, f"must be {', '.join(choices[:-1])} or {choices[-1]}")
        return value

    def count(self, key: str, default: int, low: int = 0) -> int:
        if key not in self:
            return default
        text = self.text(key).strip()
        if not re.fullmatch(r"[+-]?\d+", text) or not low <= int(text) <= MAX_INT32:
            raise self.error(key, f"must be a whole number from {low}")
        return int(text)

    def number(self, key: str, default: float | None, low: float, high: float = float(MAX_INT32)) -> float:
        value = default if key not in self else quantity_of(self.text(key))
        if value is None or not low <= value <= high:
            raise self.error(key, f"must be a number from {low:g}" + (f" to {high:g}" if high < MAX_INT32 else ""))
        return value

    def seconds(self, key: str, default: float, low: float = 0.0, high: float = 3600.0) -> float:
        if key not in self:
            return default
        value = seconds_of(self.text(key))
        if value is None or not low <= value <= high:
            raise self.error(key, f"must be a duration from {low:g}s to {high:g}s")
        return value

    def within(self, key: str) -> "Fields":
        value = self._values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(key, "must be a mapping")
        return Fields(self.owner, self._path(key), value)

    def items(self, key: str) -> list["Fields"]:
        values = self._values.get(key)
        if values is not None and (isinstance(values, str) or not isinstance(values, Sequence)):
            raise self.error(key, "must be a list")
        return [Fields(self.owner, f"{self._path(key)}[{index}]", item) for index, item in enumerate(values or ())]

    def _path(self, key: str) -> str:
        return f"{self.path}[{key}]" if "/" in key else f"{self.path}.{key}" if self.path else key
