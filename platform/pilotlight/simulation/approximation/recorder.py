"""Times of answered requests of an approximate simulation, counted as they come: memory does not grow with them."""

from typing import Final

import numpy as np

from pilotlight.simulation.result import LatencyHistogram, LatencyOverTime
from pilotlight.simulation.trace import Floats

FLUSH: Final = 200_000  # requests whose times are counted at once


class Recorder:
    """Latencies and their parts, counted in batches."""

    def __init__(self, end: float, held_by_gateway: bool) -> None:
        self.latency, self.held, self.queued, self.served = (LatencyHistogram() for _ in range(4))
        self.over_time = LatencyOverTime(end)
        self._held_by_gateway = held_by_gateway
        self._batches: list[tuple[Floats, Floats, Floats]] = []
        self._size = 0

    def add(self, arrivals: Floats, starts: Floats, times: Floats) -> None:
        self._batches.append((arrivals, starts, times))
        self._size += arrivals.size
        if self._size >= FLUSH:
            self.flush()

    def flush(self) -> None:
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
            self.over_time.add(arrivals, waited + times)
