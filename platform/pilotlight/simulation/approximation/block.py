"""Requests of some minutes at a time, drawn at random within the buckets of a trace."""

from collections.abc import Callable, Iterator, Sequence
from math import ceil, floor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pilotlight.simulation.trace import CountTrace, Floats

BLOCK_S: Final = 600
NONE: Final = np.zeros(0)
ServiceTimes = Callable[[int, int, NDArray[np.int64]], Floats]  # of buckets from, to, with their counts


class Block:
    """Requests of some minutes, those that still wait first. `low`: the first one that has not been served."""

    def __init__(
        self, first: int, arrivals: Floats, times: Floats, counts: Sequence[float], areas: Sequence[float]
    ) -> None:
        self.first, self.arrivals, self.times = first, arrivals, times
        self.until = first + len(counts)
        self._counts, self._areas = counts, areas
        before = arrivals.size - np.cumsum(counts[::-1])[::-1].astype(np.int64)
        self.low = 0
        self.index: list[int] = [*before.tolist(), arrivals.size]  # requests before each second

    def prepend(self, arrivals: Floats, times: Floats) -> None:
        """Put requests before the others that have waited since the block before."""
        self.arrivals, self.times = concatenated(arrivals, self.arrivals), concatenated(times, self.times)
        self.index = [each + arrivals.size for each in self.index]

    def of(self, end: int) -> tuple[Floats, Floats]:
        """Return the requests that arrive before the end and have not been served."""
        high = self.index[end - self.first]
        return self.arrivals[self.low : high], self.times[self.low : high]

    def load(self, at: int, end: int) -> tuple[Sequence[float], Sequence[float]]:
        """Return by second the requests that arrive, and what is left of the second after them."""
        seconds = slice(at - self.first, end - self.first)
        return self._counts[seconds], self._areas[seconds]

    def keep(self, expired: int, full: int, now: int) -> None:
        """Remove requests that have failed: the oldest of those that wait, and the newest."""
        self.low += expired
        if full:
            high = self.index[now - self.first]
            gone = slice(high - full, high)
            self.arrivals, self.times = np.delete(self.arrivals, gone), np.delete(self.times, gone)
            self.index = [each - full if each >= high else min(each, high - full) for each in self.index]


def blocks(trace: CountTrace, step_s: int, service_times: ServiceTimes, random: np.random.Generator) -> Iterator[Block]:
    """Yield the blocks of a trace; each ends with a step."""
    width = trace.bucket_seconds
    per_block = max(1, round(BLOCK_S / width))
    arrivals, times, first = NONE, NONE, 0
    for low in range(0, trace.counts.size, per_block):
        counts = trace.counts[low : low + per_block]
        high = low + counts.size
        drawn = np.repeat(np.arange(low, high) * width, counts) + random.random(int(counts.sum())) * width
        arrivals = concatenated(arrivals, np.sort(drawn))  # the times stay in order: they are equal within a bucket
        times = concatenated(times, service_times(low, high, counts))
        steps = (high * width - first) / step_s
        until = first + (ceil(steps) if high == trace.counts.size else floor(steps)) * step_s
        split = int(np.searchsorted(arrivals, until))
        if seconds := until - first:
            index = np.minimum(arrivals[:split].astype(np.int64) - first, seconds - 1)
            by_second = np.bincount(index, minlength=seconds).tolist()
            left = np.bincount(index, weights=index + first + 1 - arrivals[:split], minlength=seconds).tolist()
            yield Block(first, arrivals[:split], times[:split], by_second, left)
        arrivals, times, first = arrivals[split:], times[split:], until


def concatenated(before: Floats, values: Floats) -> Floats:
    return np.concatenate((before, values)) if before.size else values
