"""Triton's trace settings: validation, and sampling of requests. Pure.

Settings apply to all models or to one. request_traces.py stores them and writes the traces.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pilotlight_predictor.errors import BadRequest

OFF: Final = "OFF"
LEVELS: Final = (OFF, "TIMESTAMPS", "TENSORS", "MIN", "MAX")
_NUMBERS: Final = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}  # minimum of each
KEYS: Final = ("trace_file", "trace_level", *_NUMBERS)
Values = Mapping[str, Any]
DEFAULTS: Final[Values] = {
    "trace_file": "", "trace_level": (OFF,), "trace_rate": 1000, "trace_count": -1, "log_frequency": 0,
}  # fmt: skip


class TraceSettings(Struct, frozen=True):
    """Every `rate`-th request is traced, up to `count` (-1: unlimited), in files of `log_frequency` traces (0: one)."""

    file: str
    levels: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int

    @property
    def active(self) -> bool:
        return bool(self.file) and self.levels != (OFF,) and self.count != 0


def trace_settings(values: Values) -> TraceSettings:
    complete = {**DEFAULTS, **values}
    return TraceSettings(*(complete[key] for key in KEYS))


def as_triton(values: Values) -> dict[str, Any]:
    """Return the settings in Triton's format: numbers are strings."""
    complete = {**DEFAULTS, **values}
    texts = {key: value if isinstance(value, str) else str(value) for key, value in complete.items()}
    return {**texts, "trace_level": list(complete["trace_level"]), "trace_mode": "triton"}


def changed(values: Values, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings after changes; None resets one to its default. Raises BadRequest."""
    updated = dict(values)
    for key, value in changes.items():
        if key == "trace_mode":
            raise BadRequest("trace_mode cannot be changed: traces are written as 'triton' does, into a file")
        if key not in KEYS:
            raise BadRequest(f"{key[:100]} is no trace setting; there are {', '.join(KEYS)}")
        if value is None:
            updated.pop(key, None)
        else:
            updated[key] = _read(key, value)
    return updated


def _read(key: str, value: Any) -> Any:
    if key == "trace_level":
        return _levels(value)
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if key == "trace_file":
        return _file(value)
    return _number(key, value)


def _levels(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(name in LEVELS for name in names):
        raise BadRequest(f"trace_level = {value!r}, must be a list of {', '.join(LEVELS[:3])}")
    chosen = tuple(dict.fromkeys(names))
    if OFF in chosen and len(chosen) > 1:
        raise BadRequest(f"trace_level = {value!r}, cannot have OFF beside another level")
    return chosen


def _file(value: Any) -> str:
    if not isinstance(value, str) or "/" in value or "\0" in value or value in {".", ".."} or len(value) > 200:
        raise BadRequest(
            f"trace_file = {str(value)[:200]!r}, must be the name of a file in --files-dir, without folders"
        )
    return value


def _number(key: str, value: Any) -> int:
    least, text = _NUMBERS[key], str(value).strip()
    digits = text.removeprefix("-")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()) or len(digits) > 9 or int(text) < least:
        raise BadRequest(f"{key} = {str(value)[:100]!r}, must be an integer of {least} or more")
    return int(text)


class Sampler:
    """Chooses the requests to trace."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._seen = 0
        self._left = settings.count
        self.sampled = 0

    def sample(self) -> bool:
        """Return True for every `rate`-th request, until the count is used up."""
        if self._left == 0:
            return False
        self._seen += 1
        if self._seen % self.settings.rate:
            return False
        self._left -= self._left > 0
        self.sampled += 1
        return True

    @property
    def file_name(self) -> str:
        """File of the next trace: with `log_frequency` a new one after so many traces."""
        settings = self.settings
        if not settings.log_frequency:
            return settings.file
        return f"{settings.file}.{max(0, self.sampled - 1) // settings.log_frequency}"
