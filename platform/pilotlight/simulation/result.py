"""Result of a simulation: requests with their latencies and parts, replicas over time, what they cost."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Json = Any
LEAST_S: Final = 1e-5
POINTS: Final = 200  # of a series over the whole time
BINS_PER_DECADE: Final = 1000  # a bin is 0.23 % wide
_BINS: Final = 10 * BINS_PER_DECADE  # up to 1e5 s
QUANTILE: Final = re.compile(r"(held_|queued_|served_|ttft_|)p(\d{1,2}(\.\d+)?)")


class LatencyHistogram:
    """Durations in logarithmic bins: bounded memory for any number of requests, quantiles within 0.23 %."""

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS + 1, dtype=np.int64)  # the first: below LEAST_S
        self._sums = np.zeros(_BINS + 1)

    def add(self, seconds: NDArray[np.float64]) -> None:
        scaled = np.log10(np.maximum(seconds, LEAST_S) / LEAST_S) * BINS_PER_DECADE
        index = np.where(seconds < LEAST_S, 0, np.minimum(scaled.astype(np.int64) + 1, _BINS))
        self.counts += np.bincount(index, minlength=_BINS + 1)
        self._sums += np.bincount(index, weights=seconds, minlength=_BINS + 1)

    def add_constant(self, seconds: float, number: int) -> None:
        """Add a duration that `number` requests have."""
        one = LatencyHistogram()
        one.add(np.array([seconds]))
        self.counts += one.counts * number
        self._sums += one._sums * number

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return float(self._sums.sum()) / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the quantile, linear between the two nearest requests as numpy's; 0 without requests."""
        if not self.count:
            return 0.0
        rank = share * (self.count - 1)
        number = np.cumsum(self.counts)
        low, high = (int(np.searchsorted(number, edge + 1)) for edge in (np.floor(rank), np.ceil(rank)))
        before, after = (float(self._sums[index] / self.counts[index]) for index in (low, high))
        return before + (after - before) * (rank % 1)

    def share_below(self, seconds: float) -> float:
        """Return the share of requests that took at most so long."""
        if not self.count:
            return 1.0
        index = 0 if seconds < LEAST_S else int(np.log10(seconds / LEAST_S) * BINS_PER_DECADE + 0.5)
        return float(self.counts[: index + 1].sum()) / self.count

    def cdf(self) -> tuple[list[float], list[float]]:
        """Return durations and the share of requests up to each, for bins with requests."""
        used = np.flatnonzero(self.counts)
        return (self._sums[used] / self.counts[used]).tolist(), (
            np.cumsum(self.counts)[used] / max(1, self.count)
        ).tolist()


class LatencyOverTime:
    """Medians and 99th percentiles by interval of arrival, of requests that are added in its order."""

    def __init__(self, end: float) -> None:
        self._width = max(end / POINTS, 1e-9)
        self._points: list[tuple[float, float, float]] = []
        self._interval: list[NDArray[np.float64]] = []
        self._number = 0

    def add(self, arrivals: NDArray[np.float64], latency: NDArray[np.float64]) -> None:
        numbers = (arrivals / self._width).astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), numbers.size] if numbers.size else []
        for low, high in pairwise(edges):
            if numbers[low] != self._number:
                self._close()
                self._number = int(numbers[low])
            self._interval.append(latency[low:high])

    def points(self) -> list[tuple[float, float, float]]:
        """Return the start of each interval with requests, and its quantiles."""
        self._close()
        return self._points

    def _close(self) -> None:
        if self._interval:
            median, tail = np.quantile(np.concatenate(self._interval), (0.5, 0.99))
            self._points.append((self._number * self._width, float(median), float(tail)))
        self._interval = []


@dataclass(frozen=True)
class Prices:
    """Price of an hour of a GPU and of a CPU core; a core is charged as the replica requests it."""

    gpu_hour: float = 0.0
    cpu_hour: float = 0.0
    currency: str = ""


@dataclass(frozen=True)
class Simulation:
    """`replicas` and `ready` are step series of (seconds, count); `latency_over_time` of (seconds, p50, p99)."""

    name: str
    method: str  # exact or approximate
    seconds: float
    latency: LatencyHistogram
    held: LatencyHistogram  # until a replica took the request, of those that waited for one
    queued: LatencyHistogram  # in the replica, before the model ran
    served: LatencyHistogram
    failures: Mapping[str, int] = field(default_factory=dict)  # timeout, queue full, unavailable
    cold_starts: int = 0  # replicas that started, of any kind
    cold_requests: int = 0  # requests that arrived while no replica was there
    starts: Mapping[str, int] = field(default_factory=dict)  # by kind of start
    replicas: Sequence[tuple[float, int]] = ()
    ready: Sequence[tuple[float, int]] = ()
    replica_seconds: float = 0.0
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    first_token: LatencyHistogram | None = None
    latency_over_time: Sequence[tuple[float, float, float]] = ()
    assumptions: Sequence[str] = ()
    prices: Prices = Prices()
    slo_seconds: float | None = None

    @property
    def requests(self) -> int:
        return self.latency.count + self.failed

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def gpu_hours(self) -> float:
        return self.gpu_seconds / 3600

    @property
    def cpu_hours(self) -> float:
        return self.cpu_seconds / 3600

    @property
    def cost(self) -> float:
        return self.gpu_hours * self.prices.gpu_hour + self.cpu_hours * self.prices.cpu_hour

    @property
    def max_replicas(self) -> int:
        return max((count for _, count in self.replicas), default=0)

    def attainment(self, seconds: float) -> float:
        """Return the share of all requests that were answered within the time; failed ones were not."""
        return self.latency.share_below(seconds) * self.latency.count / self.requests if self.requests else 1.0

    def figures(self) -> dict[str, float]:
        """Return the numbers that conditions and objectives name, beside quantiles: see `figure`."""
        return {
            **{f"p{percent}": self.latency.quantile(percent / 100) for percent in (50, 95, 99)},
            "mean": self.latency.mean, "requests": self.requests, "failed": self.failed,
            "failed_share": self.failed / self.requests if self.requests else 0.0,
            "cold_starts": self.cold_starts, "cold_requests": self.cold_requests,
            "replica_seconds": self.replica_seconds, "gpu_hours": self.gpu_hours, "cpu_hours": self.cpu_hours,
            "cost": self.cost, "max_replicas": self.max_replicas,
            "mean_replicas": self.replica_seconds / self.seconds if self.seconds else 0.0,
        }  # fmt: skip

    def figure(self, name: str) -> float | None:
        """Return a figure, or any quantile: p99.9, held_p95, queued_p50, served_p99, ttft_p95; None: there is none."""
        part, _, percent = name.rpartition("p")
        if not QUANTILE.fullmatch(name):
            return self.figures().get(name)
        share = float(percent) / 100
        if part == "held_":
            return self._held_quantile(share)
        parts = {"": self.latency, "queued_": self.queued, "served_": self.served, "ttft_": self.first_token}
        histogram = parts[part]
        return histogram.quantile(share) if histogram is not None else None

    def _held_quantile(self, share: float) -> float:
        """Return the quantile over all answered requests; those that did not wait were held for 0 s."""
        free = self.latency.count - self.held.count
        rank = share * (self.latency.count - 1) - free
        return self.held.quantile(rank / max(1, self.held.count - 1)) if rank >= 0 and self.held.count else 0.0

    def to_dict(self) -> dict[str, Json]:
        parts = {"held": self.held, "queued": self.queued, "served": self.served}
        quantiles = {
            name: {f"p{percent}": histogram.quantile(percent / 100) for percent in (50, 95, 99)}
            | {"mean": histogram.mean, "requests": histogram.count}
            for name, histogram in ({"latency": self.latency, **parts}).items()
        }
        slo = None if self.slo_seconds is None else self.attainment(self.slo_seconds)
        return {
            "name": self.name, "method": self.method, "seconds": self.seconds, "figures": self.figures(), **quantiles,
            "failures": dict(self.failures), "starts": dict(self.starts), "slo_attainment": slo,
            "currency": self.prices.currency, "replicas": list(self.replicas), "ready": list(self.ready),
            "latency_over_time": list(self.latency_over_time), "assumptions": list(self.assumptions),
        }  # fmt: skip
