"""Times of a trace's rows in one notation: seconds from its start, a Unix time in any unit, or ISO 8601."""

import math
from typing import Final

from pilotlight.k8s.timestamps import parse_utc
from pilotlight.simulation.trace import TraceError

ISO: Final = "ISO 8601"
OFFSET: Final = "seconds from the start"
# A number's size shows its unit: 10^8 s from the start are three years, 10^8 s after 1970 is 1973.
UNITS: Final = (
    (1e8, OFFSET, 1.0), (1e11, "seconds since 1970", 1.0), (1e14, "milliseconds since 1970", 1e-3),
    (1e17, "microseconds since 1970", 1e-6), (math.inf, "nanoseconds since 1970", 1e-9),
)  # fmt: skip


class TimeReader:
    """Reader of one file's times; the first one decides the notation. `factor`: the unit that the header names."""

    def __init__(self, file: str, factor: float | None = None) -> None:
        self._file, self._factor = file, factor
        self.notation = ""

    def seconds(self, text: str, line: int) -> float:
        """Return the seconds of a time. Raise TraceError if it is none, or in another notation than those before."""
        value, notation = self._parsed(text.strip(), line)
        if not self.notation:
            self.notation = notation
        elif notation != self.notation:
            message = f"time {text} is in {notation}, and the rows above are in {self.notation}; use one notation"
            raise TraceError(self._file, line, message)
        return value

    def _parsed(self, text: str, line: int) -> tuple[float, str]:
        try:
            number = float(text)
        except ValueError:
            try:
                return parse_utc(text.replace("/", "-")).timestamp(), ISO
            except ValueError:
                message = f"{text!r} is not a time; write seconds, a Unix time or ISO 8601"
                raise TraceError(self._file, line, message) from None
        if not math.isfinite(number) or number < 0:
            raise TraceError(self._file, line, f"time is {text}, must not be negative")
        notation, factor = next((name, unit) for limit, name, unit in UNITS if number < limit)
        if self._factor is None:
            return number * factor, notation
        number *= self._factor
        return number, OFFSET if number < UNITS[0][0] else UNITS[1][1]

    @property
    def is_offset(self) -> bool:
        return self.notation == OFFSET
