"""What is traced of inferences, and when a request is sampled: Triton's settings, read, checked and told. Pure.

A setting holds for all models, or for one that has its own. request_traces.py keeps them and writes what is sampled.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pilotlight_predictor.errors import BadRequest

OFF: Final = "OFF"
LEVELS: Final = (OFF, "TIMESTAMPS", "TENSORS", "MIN", "MAX")
_NUMBERS: Final = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}  # the least that each may be
KEYS: Final = ("trace_file", "trace_level", *_NUMBERS)
Values = Mapping[str, Any]
DEFAULTS: Final[Values] = {
    "trace_file": "", "trace_level": (OFF,), "trace_rate": 1000, "trace_count": -1, "log_frequency": 0,
}  # fmt: skip


class TraceSettings(Struct, frozen=True):
    """Each `rate`-th request is traced, `count` of them (-1: any number), into files of `log_frequency` (0: one)."""

    file: str
    levels: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int

    @property
    def active(self) -> bool:
        return bool(self.file) and self.levels != (OFF,) and self.count != 0


def trace_settings(values: Values) -> TraceSettings:
    whole = {**DEFAULTS, **values}
    return TraceSettings(*(whole[key] for key in KEYS))


def told(values: Values) -> dict[str, Any]:
    """As Triton tells them: numbers are strings."""
    whole = {**DEFAULTS, **values}
    texts = {key: value if isinstance(value, str) else str(value) for key, value in whole.items()}
    return {**texts, "trace_level": list(whole["trace_level"]), "trace_mode": "triton"}


def changed(values: Values, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings after a change; None takes one back to what holds otherwise. Raises BadRequest."""
    made = dict(values)
    for key, value in asked.items():
        if key == "trace_mode":
            raise BadRequest("trace_mode cannot be changed: traces are written as 'triton' does, into a file")
        if key not in KEYS:
            raise BadRequest(f"{key[:100]} is no trace setting; there are {', '.join(KEYS)}")
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _read(key, value)
    return made


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
    """Which requests are traced under one setting."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._seen = 0
        self._left = settings.count
        self.taken = 0

    def takes(self) -> bool:
        """Every `rate`-th, until the count is used up."""
        if self._left == 0:
            return False
        self._seen += 1
        if self._seen % self.settings.rate:
            return False
        self._left -= self._left > 0
        self.taken += 1
        return True

    @property
    def file_name(self) -> str:
        """With a log_frequency, each so many traces have a file of their own."""
        settings = self.settings
        if not settings.log_frequency:
            return settings.file
        return f"{settings.file}.{max(0, self.taken - 1) // settings.log_frequency}"
