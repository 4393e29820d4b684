"""Counters of one backend since the last report. Pure: the time is an argument."""

from bisect import bisect_left

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.messages import BackendReport
from pilotlight.gateway.routing import RouteKey


class Counts:
    """`load`: requests queued or in flight; its time average is the concurrency that autoscalers use."""

    __slots__ = (
        "_changed",
        "_errors",
        "_held",
        "_held_s",
        "_latencies",
        "_latency_s",
        "_load_seconds",
        "_rejected",
        "_requests",
        "_since",
        "cold_starts",
        "load",
        "lost",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.load = 0
        self._changed = now
        self._reset(now)

    def _reset(self, now: float) -> None:
        self._since = now
        self._load_seconds = 0.0
        self._requests = self._errors = self._rejected = self._held = self.cold_starts = self.lost = 0
        self._held_s = self._latency_s = 0.0
        self._latencies = [0] * (len(LATENCY_BUCKETS) + 1)

    def enter(self, now: float) -> None:
        self._load_seconds += self.load * (now - self._changed)
        self._changed = now
        self.load += 1

    def leave(self, now: float) -> None:
        """Remove a request without a response: it went to another backend, or its client disconnected."""
        self._load_seconds += self.load * (now - self._changed)
        self._changed = now
        self.load -= 1

    def responded(self, now: float, status: int, sent_at: float) -> None:
        """Count a response; `status` 0: none, or a truncated one. The latency excludes the time held."""
        self.leave(now)
        self._requests += 1
        self._latencies[bisect_left(LATENCY_BUCKETS, now - sent_at)] += 1
        self._latency_s += now - sent_at
        if status >= 500 or status == 0:
            self._errors += 1

    def rejected(self, now: float) -> None:
        """Count a request that the gateway answered with an error because no replica could take it."""
        self.leave(now)
        self._requests += 1
        self._errors += 1
        self._rejected += 1

    def held(self, seconds: float) -> None:
        self._held += 1
        self._held_s += seconds

    def take_report(
        self, key: RouteKey, workload: str, revision: str, waiting: int, now: float
    ) -> BackendReport | None:
        """Return the report and reset the counters; None if there were no requests."""
        load_seconds = self._load_seconds + self.load * (now - self._changed)
        seconds = now - self._since
        report = None
        if load_seconds or self.load or self._requests:
            report = BackendReport(
                *key, workload, revision, load_seconds / seconds if seconds > 0 else float(self.load), self._requests,
                self._errors, waiting, self.load - waiting, self.cold_starts, self._held_s, tuple(self._latencies),
                self._held, self._rejected, self._latency_s, self.lost,
            )  # fmt: skip
        self._changed = now
        self._reset(now)
        return report
