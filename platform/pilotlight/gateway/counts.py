"""What happened to one backend since the last report. Pure bookkeeping: every call is told the time."""

from bisect import bisect_left

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.messages import BackendReport
from pilotlight.gateway.routing import Key


class Counts:
    """`load` is what is here now, waiting or in flight; its time average is what autoscaling calls concurrency."""

    __slots__ = (
        "_area", "_began", "_changed", "_errors", "_held", "_held_s", "_latencies", "_latency_s", "_refused",
        "_requests", "cold_starts", "load", "lost",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.load = 0
        self._changed = now
        self._reset(now)

    def _reset(self, now: float) -> None:
        self._began = now
        self._area = 0.0
        self._requests = self._errors = self._refused = self._held = self.cold_starts = self.lost = 0
        self._held_s = self._latency_s = 0.0
        self._latencies = [0] * (len(LATENCY_BUCKETS) + 1)

    def enter(self, now: float) -> None:
        self._area += self.load * (now - self._changed)
        self._changed = now
        self.load += 1

    def leave(self, now: float) -> None:
        """It went to another backend, or its client did not wait: nothing was answered."""
        self._area += self.load * (now - self._changed)
        self._changed = now
        self.load -= 1

    def answered(self, now: float, status: int, sent_at: float) -> None:
        """`status` 0: no answer came, or it broke off. The latency is a replica's, so time held is no part of it."""
        self.leave(now)
        self._requests += 1
        self._latencies[bisect_left(LATENCY_BUCKETS, now - sent_at)] += 1
        self._latency_s += now - sent_at
        if status >= 500 or status == 0:
            self._errors += 1

    def refused(self, now: float) -> None:
        """The gateway answered for want of a replica: an error to whoever asked."""
        self.leave(now)
        self._requests += 1
        self._errors += 1
        self._refused += 1

    def held(self, seconds: float) -> None:
        self._held += 1
        self._held_s += seconds

    def drain(self, key: Key, workload: str, revision: str, waiting: int, now: float) -> BackendReport | None:
        """None when there was nothing to tell."""
        area = self._area + self.load * (now - self._changed)
        seconds = now - self._began
        told = None
        if area or self.load or self._requests:
            told = BackendReport(
                *key, workload, revision, area / seconds if seconds > 0 else float(self.load), self._requests,
                self._errors, waiting, self.load - waiting, self.cold_starts, self._held_s, tuple(self._latencies),
                self._held, self._refused, self._latency_s, self.lost,
            )  # fmt: skip
        self._changed = now
        self._reset(now)
        return told
