"""Mean latency of a request by the number in flight in its replica, for the approximate simulation."""

from collections.abc import Callable
from math import ceil

import numpy as np
from numpy.typing import NDArray

from pilotlight.simulation.service_times import LlmRates, ServiceTimes
from pilotlight.simulation.stations import DEFAULT_SERVICE_TIME_S, interpolate
from pilotlight.simulation.trace import CountTrace, Floats


def alone(times: ServiceTimes) -> tuple[float, ...]:
    """Return sampled seconds of a request that runs alone."""
    for table in (times.by_batch, times.by_concurrency):
        if table:
            return table[min(table)]
    return times.samples or (DEFAULT_SERVICE_TIME_S,)


def latencies_by_concurrency(times: ServiceTimes, trace: CountTrace) -> list[float]:
    """Return the mean latency by requests in flight in a replica, from 0 on; empty: they do not slow each other down.

    In a batch a request waits for half of the one before it on average.
    """
    if trace.service_times is not None and times.llm is None:
        return []
    if times.llm is not None:
        return _llm_latencies(times.llm, trace)
    if times.by_batch:
        means = {size: sum(samples) / len(samples) for size, samples in times.by_batch.items()}
        most = times.max_batch or max(means)
        latencies = [means[min(means)], times.batch_delay + means[min(means)]]
        for number in range(2, 64 * most):
            size = min(number, most) / times.parallel
            latencies.append(interpolate(means, max(1, ceil(size))) * max(1.5, number / most / times.parallel + 0.5))
        return latencies
    if not times.by_concurrency:
        return []
    means = {level: sum(samples) / len(samples) for level, samples in times.by_concurrency.items()}
    most = max(means)
    return [interpolate(means, max(1, number)) * max(1.0, number / most) for number in range(64 * most)]


def _llm_latencies(rates: LlmRates, trace: CountTrace) -> list[float]:
    def mean(values: Floats | None) -> float:
        if values is None:
            return 200.0
        return float((values * trace.counts).sum() / max(1, trace.requests))

    asked, answered = mean(trace.input_tokens), mean(trace.output_tokens)
    most = rates.max_batch
    if rates.kv_cache_tokens:
        most = max(1, min(most, int(rates.kv_cache_tokens / max(1.0, asked + answered))))
    latencies = []
    for number in range(8 * most):
        size = max(1, min(number, most))
        decode = answered * size / interpolate(rates.decode_tokens_s, size)
        # While it decodes, the prefills of those that come after it interrupt it: as many as are in the batch.
        latencies.append((decode + size * asked / rates.prefill_tokens_s) * max(1.0, number / most))
    return latencies


def service_times_of(
    times: ServiceTimes, trace: CountTrace, shared: bool, random: np.random.Generator
) -> Callable[[int, int, NDArray[np.int64]], Floats]:
    """Return a function that draws the seconds of requests alone; where they share a replica, relative to the mean."""

    def draw(low: int, high: int, counts: NDArray[np.int64]) -> Floats:
        number = int(counts.sum())
        if trace.service_times is not None:
            return np.repeat(trace.service_times[low:high], counts)
        if times.llm is not None:
            return np.ones(number)
        samples = np.array(alone(times))
        drawn = np.full(number, samples[0]) if samples.size == 1 else random.choice(samples, number)
        return drawn / samples.mean() if shared else drawn

    return draw
