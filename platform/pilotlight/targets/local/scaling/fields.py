"""Fields of manifests as numbers: durations, quantities and counts, with an error that names object, field and fix."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.errors import UsageError

Json = Any
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_SUFFIXES: Final = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
MANY: Final = 2**31 - 1


def object_name(manifest: Mapping[str, Json]) -> str:
    return f"{manifest.get('kind') or 'object'} {(manifest.get('metadata') or {}).get('name') or 'without a name'}"


def seconds_of(text: str) -> float | None:
    """`1m30s` as Go reads it; a bare 0 needs no unit; None where it is no duration."""
    if text == "0":
        return 0.0
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def quantity_of(text: str) -> float | None:
    """`500m` is 0.5, `2Gi` is 2147483648; None where it is no quantity."""
    found = _QUANTITY.fullmatch(text.strip())
    return float(found[1]) * _SUFFIXES.get(found[2] or "", 1.0) if found else None


class Fields:
    """The fields of one part of one object. Absent and null read as the default."""

    def __init__(self, owner: str, path: str, values: Mapping[str, Json] | None) -> None:
        self.owner, self.path, self._values = owner, path, values or {}

    def error(self, key: str, must: str) -> UsageError:
        found = self._values.get(key)
        return UsageError(f"{self.owner}: {self._place(key)} = {found if found is not None else 'nothing'}, {must}")

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
        if not re.fullmatch(r"[+-]?\d+", text) or not low <= int(text) <= MANY:
            raise self.error(key, f"must be a whole number from {low}")
        return int(text)

    def number(self, key: str, default: float | None, low: float, high: float = float(MANY)) -> float:
        value = default if key not in self else quantity_of(self.text(key))
        if value is None or not low <= value <= high:
            raise self.error(key, f"must be a number from {low:g}" + (f" to {high:g}" if high < MANY else ""))
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
        return Fields(self.owner, self._place(key), value)

    def items(self, key: str) -> list["Fields"]:
        found = self._values.get(key)
        if found is not None and (isinstance(found, str) or not isinstance(found, Sequence)):
            raise self.error(key, "must be a list")
        return [Fields(self.owner, f"{self._place(key)}[{index}]", item) for index, item in enumerate(found or ())]

    def _place(self, key: str) -> str:
        return f"{self.path}[{key}]" if "/" in key else f"{self.path}.{key}" if self.path else key
