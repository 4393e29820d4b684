"""Options of a trace, as in `poisson:rate=5,duration=1h` and `trace.csv?bucket=60s`: parsed once, typed when read."""

import math
import re
from collections.abc import Sequence
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.k8s.quantities import parse_duration
from pilotlight.wire.messages import suggestion

DAY_S: Final = 86400.0
_DAYS: Final = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(.*)")


def parse_span(text: str) -> float | None:
    """Return the seconds of a duration, which may begin with days (`7d`, `1d12h`), or of a plain number."""
    try:
        return float(text)
    except ValueError:
        match = _DAYS.fullmatch(text)
    if match is None or not text:
        return None
    rest = parse_duration(match[2]) if match[2] else 0.0
    return None if rest is None else float(match[1] or 0) * DAY_S + rest


class TraceOptions:
    """Options of one trace; `check_read` refuses those that its reader does not have."""

    def __init__(self, trace: str, text: str, separator: str) -> None:
        self.trace = trace
        self._values: dict[str, str] = {}
        self._read: set[str] = set()
        for part in filter(None, text.split(separator)):
            name, equals, value = part.partition("=")
            if not equals or not value:
                raise UsageError(f"trace {trace}: {part!r} has no value, must be NAME=VALUE")
            self._values[name.strip()] = value.strip()

    def text(self, name: str, default: str = "") -> str:
        self._read.add(name)
        return self._values.get(name, default)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices; the first is the default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise self.error(name, f"must be {' or '.join(choices)}")
        return value

    def number(self, name: str, default: float | None = None, *, above_zero: bool = True) -> float:
        """Return a number; without a default it must be given."""
        value = self.text(name)
        if not value and default is not None:
            return default
        try:
            number = float(value)
        except ValueError:
            raise self.error(name, "must be a number") from None
        if not math.isfinite(number) or number < 0 or (above_zero and not number):
            raise self.error(name, "must be above 0" if above_zero else "must be 0 or more")
        return number

    def seconds(self, name: str, default: float | None = None) -> float:
        """Return the seconds of a duration such as 90s, 1h30m, 7d, or of a plain number."""
        value = self.text(name)
        if not value and default is not None:
            return default
        seconds = parse_span(value)
        if seconds is None or not (math.isfinite(seconds) and seconds > 0):
            raise self.error(name, "must be a duration above 0, such as 90s, 1h or 7d")
        return seconds

    def others(self) -> dict[str, str]:
        """Return the options that were not read; the reader takes them as its own."""
        return {name: value for name, value in self._values.items() if name not in self._read}

    def check_read(self) -> None:
        for name in self.others():
            raise UsageError(
                f"trace {self.trace}: it has no option {name}; there are {', '.join(sorted(self._read)) or 'none'}"
                f"{suggestion(name, self._read)}"
            )

    def error(self, name: str, problem: str) -> UsageError:
        value = self._values.get(name)
        return UsageError(f"trace {self.trace}: {name} {f'is {value}' if value else 'is not given'}, {problem}")
