"""Gateway reports of one scaling unit over the last minutes: latency percentiles, errors, and load samples."""

import math
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from pilotlight import histograms
from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.messages import BackendReport
from pilotlight.targets.local.scaling.model import Sample

RETENTION_S: Final = 300.0
LONGEST_WINDOW_S: Final = 3600.0
RATE_S: Final = 10.0


class TrafficLog:
    """Reports of one unit and the per-second samples made of them; `now` is monotonic."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque()
        self.waiting = 0
        self.in_flight = 0
        self.cold_starts = 0
        self._reports: deque[tuple[float, BackendReport]] = deque()
        self._concurrency = 0.0
        self._requests = 0.0

    def report(self, report: BackendReport, now: float) -> None:
        self.waiting, self.in_flight = report.waiting, report.in_flight
        self.cold_starts += report.cold_starts
        self._concurrency = max(self._concurrency, report.concurrency)
        self._requests += report.requests
        if report.requests:
            self._reports.append((now, report))

    def tick(self, now: float) -> None:
        """End one second: its reports, or their absence, become a sample."""
        load = max(self._concurrency, float(self.waiting))
        self.samples.append(Sample(now, load, self._requests))
        self._concurrency, self._requests = float(self.in_flight + self.waiting), 0.0
        while self.samples and self.samples[0].at < now - LONGEST_WINDOW_S:
            self.samples.popleft()
        self._prune(now)

    def requests(self, now: float) -> int:
        self._prune(now)
        return sum(report.requests for _, report in self._reports)

    def per_second(self, now: float) -> float:
        """Return the mean request rate of the last RATE_S seconds."""
        return sum(report.requests for at, report in self._reports if at > now - RATE_S) / RATE_S

    def error_percent(self, now: float) -> float | None:
        requests = self.requests(now)
        return 100.0 * sum(report.errors for _, report in self._reports) / requests if requests else None

    def quantile_ms(self, share: float, now: float) -> float | None:
        self._prune(now)
        counted = [report.latencies for _, report in self._reports if report.latencies]
        return quantile([sum(column) for column in zip(*counted, strict=True)], share) if counted else None

    def _prune(self, now: float) -> None:
        while self._reports and self._reports[0][0] < now - RETENTION_S:
            self._reports.popleft()


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the quantile in milliseconds; `counts` has one entry per LATENCY_BUCKETS and one for +Inf."""
    edges = (*LATENCY_BUCKETS, math.inf)
    seconds = histograms.quantile(tuple(zip(edges, accumulate(counts), strict=False)), share)
    return None if seconds is None else seconds * 1000
