"""Counters and histograms of a model version: plain integers, aggregated only when read.

The scheduler calls `record_execution` once per executed batch, on the event loop: no locks, and a batch of 32 requests
costs as much as one request. Readers are `GET /v2/models/{m}/stats` (`as_v2`) and the collector.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pilotlight.contract import LATENCY_BUCKETS

FailureReason = Literal["REJECTED", "CANCELED", "BACKEND"]
FAILURE_REASONS: Final[tuple[FailureReason, ...]] = ("REJECTED", "CANCELED", "BACKEND")

# Request time over compute time, with TRTIS' bucket bounds. 1: no time in the queue.
LOAD_RATIO_BUCKETS: Final = (1.05, 1.10, 1.25, 1.5, 2.0, 10.0, 50.0)


class Histogram:
    """Counts per bucket, not cumulative; the last count is for values above every bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        counts, bounds = self.counts, self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values)

    def observe_many(self, value: float, n: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += n
        self.sum += value * n

    @property
    def count(self) -> int:
        return sum(self.counts)


class ModelStats:
    """Statistics of one model version since it was loaded. Durations are nanoseconds."""

    __slots__ = (
        "batches", "cache_enabled", "cache_hit_count", "cache_hit_ns", "cache_miss_count", "cache_miss_ns",
        "execution_count", "failure_ns", "failures", "infer_ns", "inference_count", "input_ns", "last_inference_ms",
        "load_ratio", "name", "output_ns", "queue_ns", "queue_seconds", "success_count", "success_ns", "tags",
        "version",
    )  # fmt: skip

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.tags: Mapping[str, str] = {}
        self.cache_enabled = False
        self.last_inference_ms = 0
        self.inference_count = self.execution_count = 0
        self.success_count = self.success_ns = self.queue_ns = 0
        self.input_ns = self.infer_ns = self.output_ns = 0
        self.failure_ns = 0
        self.failures: dict[str, int] = dict.fromkeys(FAILURE_REASONS, 0)
        self.cache_hit_count = self.cache_hit_ns = 0
        self.cache_miss_count = self.cache_miss_ns = 0
        self.batches: dict[int, list[int]] = {}  # rows → [executions, input ns, infer ns, output ns]
        self.queue_seconds = Histogram()
        self.load_ratio = Histogram(LOAD_RATIO_BUCKETS)

    def record_execution(
        self, requests: int, rows: int, queue_ns_total: int, input_ns: int, infer_ns: int, output_ns: int, now_ms: int
    ) -> None:
        """Record an executed batch whose requests all succeeded; `queue_ns_total` is the sum of their queue times.

        Every request is charged the compute time of its whole batch, as Triton does: 4 requests that waited 1 ms each
        for a batch of 3 ms count 4 × 4 ms. The histograms take the batch's mean wait for each of its requests.
        """
        compute_ns = input_ns + infer_ns + output_ns
        self.success_count += requests
        self.success_ns += queue_ns_total + requests * compute_ns
        self.queue_ns += queue_ns_total
        self.input_ns += requests * input_ns
        self.infer_ns += requests * infer_ns
        self.output_ns += requests * output_ns
        self.inference_count += rows
        self.record_batch(rows, input_ns, infer_ns, output_ns, now_ms)
        wait_ns = queue_ns_total / requests
        self.queue_seconds.observe_many(wait_ns * 1e-9, requests)
        self.load_ratio.observe_many(1.0 + wait_ns / (compute_ns or 1), requests)

    def record_success(
        self, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, total_ns: int, batch_rows: int
    ) -> None:
        """Record one request without counting an execution, as for an ensemble's."""
        self.success_count += 1
        self.success_ns += total_ns
        self.queue_ns += queue_ns
        self.input_ns += input_ns
        self.infer_ns += infer_ns
        self.output_ns += output_ns
        self.inference_count += batch_rows
        self.queue_seconds.observe(queue_ns * 1e-9)
        self.load_ratio.observe(total_ns / ((input_ns + infer_ns + output_ns) or 1))

    def record_batch(self, rows: int, input_ns: int, infer_ns: int, output_ns: int, now_ms: int) -> None:
        """Record one execution without its requests (some of them may have failed)."""
        self.execution_count += 1
        self.last_inference_ms = now_ms
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = [0, 0, 0, 0]
        batch[0] += 1
        batch[1] += input_ns
        batch[2] += infer_ns
        batch[3] += output_ns

    def record_failure(self, total_ns: int, reason: FailureReason) -> None:
        self.failures[reason] += 1
        self.failure_ns += total_ns

    def record_cache_hit(self, ns: int) -> None:
        """Record a success without inference or execution."""
        self.success_count += 1
        self.success_ns += ns
        self.cache_hit_count += 1
        self.cache_hit_ns += ns

    def record_cache_miss(self, ns: int) -> None:
        """Record lookup and insertion; the request itself is counted with the batch that computed it."""
        self.success_ns += ns
        self.cache_miss_count += 1
        self.cache_miss_ns += ns

    @property
    def failure_count(self) -> int:
        return sum(self.failures.values())

    @property
    def compute_ns(self) -> int:
        return self.input_ns + self.infer_ns + self.output_ns

    def as_v2(self) -> dict[str, Any]:
        """One element of `model_stats` in the statistics extension of the V2 protocol."""
        computed = self.success_count - self.cache_hit_count
        return {
            "name": self.name,
            "version": str(self.version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _duration(self.success_count, self.success_ns),
                "fail": _duration(self.failure_count, self.failure_ns),
                "queue": _duration(self.success_count, self.queue_ns),
                "compute_input": _duration(computed, self.input_ns),
                "compute_infer": _duration(computed, self.infer_ns),
                "compute_output": _duration(computed, self.output_ns),
                "cache_hit": _duration(self.cache_hit_count, self.cache_hit_ns),
                "cache_miss": _duration(self.cache_miss_count, self.cache_miss_ns),
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": _duration(count, input_ns),
                    "compute_infer": _duration(count, infer_ns),
                    "compute_output": _duration(count, output_ns),
                }
                for rows, (count, input_ns, infer_ns, output_ns) in sorted(self.batches.items())
            ],
            "memory_usage": [],
        }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
