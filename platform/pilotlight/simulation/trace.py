"""Traces: when requests arrive, one by one or as counts per bucket of time, and what each of them asks for.

A `Trace` is replayed exactly. A `CountTrace` takes memory by its length, not by its requests, and is approximated.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pilotlight.errors import UsageError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
NOT_ASCENDING: Final = "is earlier than the request before it; sort the trace by time"


class TraceError(UsageError):
    """A trace that cannot be read, with its place: `trace.csv:12: duration is -1, must not be negative`."""

    def __init__(self, file: str, line: int, message: str, hint: str = "") -> None:
        super().__init__(f"{file}:{line}: {message}" if line else f"{file}: {message}", hint)
        self.file, self.line = file, line


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests by their arrivals, in seconds from the start, ascending.

    Arrays beside `arrivals` have its length; None: the profile says it. `duration`: seconds that the trace covers, with
    the idle time after its last request; 0: up to that request.
    """

    arrivals: Floats
    service_times: Floats | None = None
    input_tokens: Counts | None = None
    output_tokens: Counts | None = None
    start: datetime | None = None  # UTC
    duration: float = 0.0

    def __post_init__(self) -> None:
        if self.arrivals.size and (self.arrivals[0] < 0 or (np.diff(self.arrivals) < 0).any()):
            raise UsageError(f"a request {NOT_ASCENDING}")
        for name in ("service_times", "input_tokens", "output_tokens"):
            values: NDArray[Any] | None = getattr(self, name)
            if values is not None and values.size != self.arrivals.size:
                raise UsageError(f"{name} has {values.size} entries, must have {self.arrivals.size}, one a request")

    @property
    def requests(self) -> int:
        return int(self.arrivals.size)

    @property
    def seconds(self) -> float:
        return max(self.duration, float(self.arrivals[-1]) if self.arrivals.size else 0.0)

    def counted(self, bucket_seconds: float = 1.0) -> "CountTrace":
        """Return the same requests as counts, with means per bucket of what they ask for."""
        size = int(self.seconds // bucket_seconds) + 1
        index = (self.arrivals // bucket_seconds).astype(np.int64)
        counts = np.bincount(index, minlength=size)

        def means(values: NDArray[Any] | None) -> Floats | None:
            if values is None:
                return None
            return np.bincount(index, weights=values, minlength=size) / np.maximum(counts, 1)

        return CountTrace(
            bucket_seconds, counts, means(self.service_times), means(self.input_tokens), means(self.output_tokens),
            self.start,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class CountTrace:
    """Requests counted per bucket of `bucket_seconds`. The other arrays are means per bucket."""

    bucket_seconds: float
    counts: Counts
    service_times: Floats | None = None
    input_tokens: Floats | None = None
    output_tokens: Floats | None = None
    start: datetime | None = None  # UTC

    def __post_init__(self) -> None:
        if self.bucket_seconds <= 0:
            raise UsageError(f"a bucket of {self.bucket_seconds:g} s, must be longer than 0")
        if self.counts.size and self.counts.min() < 0:
            raise UsageError(f"a bucket has {self.counts.min()} requests, must not be negative")

    @property
    def requests(self) -> int:
        return int(self.counts.sum())

    @property
    def seconds(self) -> float:
        return self.bucket_seconds * self.counts.size

    def expanded(self, seed: int = 0) -> Trace:
        """Return single requests, spread at random over their buckets: a Poisson process of that rate in each."""
        starts = np.repeat(np.arange(self.counts.size) * self.bucket_seconds, self.counts)
        arrivals = np.sort(starts + np.random.default_rng(seed).random(starts.size) * self.bucket_seconds)

        def repeated(values: Floats | None) -> Floats | None:
            return None if values is None else np.repeat(values, self.counts)

        tokens = [
            None if values is None else np.rint(np.repeat(values, self.counts)).astype(np.int64)
            for values in (self.input_tokens, self.output_tokens)
        ]
        return Trace(arrivals, repeated(self.service_times), tokens[0], tokens[1], self.start, self.seconds)
