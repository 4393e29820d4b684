"""Times of answered requests of an approximate simulation, counted as they come: memory does not grow with them."""

from itertools import pairwise
from typing import Final

import numpy as np

from pilotlight.simulation.result import LatencyHistogram
from pilotlight.simulation.trace import Floats

FLUSH: Final = 200_000  # requests whose times are counted at once
POINTS: Final = 200


class Recorder:
    """Latencies and their parts, counted in batches; medians and 99th percentiles by interval of arrival."""

    def __init__(self, end: float, held_by_gateway: bool) -> None:
        self.latency, self.held, self.queued, self.served = (LatencyHistogram() for _ in range(4))
        self.over_time: list[tuple[float, float, float]] = []
        self._width = max(end / POINTS, 1e-9)
        self._held_by_gateway = held_by_gateway
        self._batches: list[tuple[Floats, Floats, Floats]] = []
        self._size = 0
        self._interval: list[Floats] = []
        self._number = 0

    def add(self, arrivals: Floats, starts: Floats, times: Floats) -> None:
        self._batches.append((arrivals, starts, times))
        self._size += arrivals.size
        if self._size >= FLUSH:
            self.flush(last=False)

    def flush(self, last: bool = True) -> None:
        if self._batches:
            arrivals, starts, times = (np.concatenate(column) for column in zip(*self._batches, strict=True))
            self._batches, self._size = [], 0
            waited = starts - arrivals
            self.latency.add(waited + times)
            if times.min() == times.max():
                self.served.add_constant(float(times[0]), times.size)
            else:
                self.served.add(times)
            if self._held_by_gateway:
                self.held.add(waited[waited > 0])
                self.queued.add_constant(0.0, waited.size)
            else:
                self.queued.add(waited)
            self._split(arrivals, waited + times)
        if last:
            self._close_interval()

    def _split(self, arrivals: Floats, latency: Floats) -> None:
        numbers = (arrivals / self._width).astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), numbers.size]
        for low, high in pairwise(edges):
            if numbers[low] != self._number:
                self._close_interval()
                self._number = int(numbers[low])
            self._interval.append(latency[low:high])

    def _close_interval(self) -> None:
        if self._interval:
            median, tail = np.quantile(np.concatenate(self._interval), (0.5, 0.99))
            self.over_time.append((self._number * self._width, float(median), float(tail)))
        self._interval = []
