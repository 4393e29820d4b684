"""Approximate simulation of long traces, step by step: autoscaler and replicas as they are, requests in bulk.

Within a step of two seconds all requests of a bucket arrive at random, and one queue feeds all replicas: the choice of
the least loaded replica and the queues inside replicas fall together. Memory does not grow with the requests.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from math import ceil, floor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.control_link import BackendReport
from pilotlight.simulation.replica_set import ReplicaSet, SimulatedReplica
from pilotlight.simulation.result import LatencyHistogram, Simulation
from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.service_times import LlmRates, Profile, ServiceTimes
from pilotlight.simulation.stations import DEFAULT_SERVICE_TIME_S, interpolate
from pilotlight.simulation.trace import CountTrace, Trace
from pilotlight.simulation.trigger_metrics import TriggerMetrics
from pilotlight.simulation.virtual_clock import VirtualClock

STEP_S: Final = 2
FINE_SECONDS: Final = 200_000  # a trace up to this length has steps of a second if decisions are made each second
BLOCK_S: Final = 600  # arrivals are drawn for so many seconds at once
FLUSH: Final = 200_000  # requests whose times are counted at once
POINTS: Final = 200
MOST_S: Final = 64  # that are served at once
KEEP_S: Final = 86_400  # no request takes longer
Floats = NDArray[np.float64]
NONE: Final = np.zeros(0)


class ApproximateEngine:
    def __init__(self, scenario: Scenario, profile: Profile, trace: CountTrace, seed: int) -> None:
        fine = scenario.tick_s < STEP_S and trace.seconds <= FINE_SECONDS
        self._step_s = 1 if fine else STEP_S
        self.scenario = replace(scenario, tick_s=max(float(self._step_s), scenario.tick_s))
        self.profile, self.trace = profile, trace
        self.clock = VirtualClock()
        self.end = trace.seconds
        self._rng = np.random.default_rng(seed)
        self.failures: Counter[str] = Counter()
        self.cold_requests = 0
        self._latencies = latencies_by_concurrency(profile.service_times, trace)
        samples = alone(profile.service_times)
        self._constant = samples[0] if len(samples) == 1 and trace.service_times is None else 0.0
        parallel = profile.service_times.parallel
        self._slots = min(parallel, scenario.concurrency or parallel)
        self._free: list[float] = []  # a heap of when each slot of a ready replica is free
        self._busy: list[float] = []  # when each request in flight is complete, if they slow each other down
        self._ready = 0
        seconds = ceil(self.end) + 2 * self._step_s
        self._completed = np.zeros(seconds + KEEP_S)  # requests by second of their completion
        self._completed_area = np.zeros(seconds + KEEP_S)  # what is left of that second after them
        self._in_system = 0.0
        self._span = self._step_s
        self._retiring: list[SimulatedReplica] | None = None  # while decisions are made ahead of the requests
        self.metrics = TriggerMetrics(scenario)
        self.replica_set = ReplicaSet(
            self.scenario, profile, self.end, self._rng, self.clock, self._on_ready, self._on_retire,
            self.metrics.values,
        )  # fmt: skip
        self.recording = Recording(self.end, bool(scenario.concurrency))

    @property
    def running(self) -> float:
        return min(1.0, self._in_system / max(1, self._ready * self._slots))

    @property
    def station(self) -> "ApproximateEngine":
        return self

    def run(self) -> Simulation:
        self.replica_set.begin(0.0)
        arrivals, times = NONE, NONE
        until = 0
        for until, new, new_times, counts, areas in self._blocks():
            arrivals, times = _after(arrivals, new), _after(times, new_times)
            arrivals, times = self._run_block(until - len(counts), arrivals, times, counts, areas)
        while arrivals.size:
            nothing = [0.0] * self._step_s
            arrivals, times = self._run_block(until, arrivals, times, nothing, nothing)
            until += self._step_s
        self.recording.flush()
        self.replica_set.close(self.end)
        return self._result()

    def _run_block(
        self, first: int, arrivals: Floats, times: Floats, counts: list[float], areas: list[float]
    ) -> tuple[Floats, Floats]:
        """Serve requests, those that still wait before those of the block; return those that wait at its end.

        Several steps are served at once, and decided one by one; from the first one that changes the replicas on they
        are served again.
        """
        low, until = 0, first + len(counts)
        by_second = arrivals.size - np.cumsum(counts[::-1])[::-1].astype(np.int64)  # index of the first one of each
        index = [*by_second.tolist(), arrivals.size]
        at = first
        while at < until:
            end = min(until, at + self._next_span(at, waiting=low < index[at - first]))
            free, busy = self._free.copy(), self._busy.copy()
            chosen = slice(low, index[end - first])
            starts = self._serve(arrivals[chosen], times[chosen], at, end)
            if end - at > self._step_s and starts.size < index[end - first] - low:
                self._free, self._busy, self._span = free, busy, self._step_s
                continue
            served = slice(low, low + starts.size)
            if self._latencies:
                times[served] = self._shared_times
            seconds = slice(at - first, end - first)
            self._retiring = []
            stop = self._decide(at, arrivals[chosen], starts, times[served], counts[seconds], areas[seconds])
            if stop < end:
                self._free, self._busy = free, busy
                chosen = slice(low, index[stop - first])
                starts = self._serve(arrivals[chosen], times[chosen], at, stop)
                served = slice(low, low + starts.size)
            self._span = min(MOST_S, 2 * (end - at)) if stop == end else self._step_s
            retired, self._retiring = self._retiring, None
            for replica in retired:
                self._on_retire(replica, stop)
            if starts.size:
                self._count(arrivals[served], starts, times[served])
            low += starts.size
            if low < index[stop - first]:
                low, high = self._reject(arrivals, low, index[stop - first], stop)
                if surplus := index[stop - first] - high:
                    gone = slice(high, high + surplus)
                    arrivals, times = np.delete(arrivals, gone), np.delete(times, gone)
                    index = [each - surplus if each > high else each for each in index]
            at = stop
        return arrivals[low:], times[low:]

    def _next_span(self, at: int, waiting: bool) -> int:
        """Return how many seconds to serve at once: one step while requests wait or replicas start."""
        heap = self.clock.heap
        if waiting or not self._ready or self.metrics.used or (heap and heap[0][0] <= at + self._span):
            return self._step_s
        return self._span

    def _serve(self, arrivals: Floats, times: Floats, begin: int, end: int) -> Floats:
        """Return when the requests start that do so before the end: the first ones, since they are served in order."""
        if not arrivals.size:
            self._run_events(end)
            return NONE
        if not self._ready:
            self._run_events(begin)
            if not self._ready:
                self.replica_set.wake(max(float(arrivals[0]), float(begin)), 1)
            while not self._ready and self.clock.heap and self.clock.heap[0][0] < end:
                self.clock.run_next()
            cold = arrivals.size if not self._ready else int(np.searchsorted(arrivals, self.clock.now))
            self.cold_requests += cold - int(np.searchsorted(arrivals, begin))
            if not self._ready:
                return NONE
        self._run_events(end)  # slots of replicas that become ready within the step are free from then on
        if not self._free:
            return NONE
        if self._latencies:
            return self._serve_shared(arrivals.tolist(), times.tolist(), end)
        if self._constant and (starts := self._serve_constant(arrivals, end)) is not None:
            return starts
        before = self._free.copy()
        starts = self._serve_in_order(arrivals, times)
        if starts[-1] >= end:
            self._free = before
            number = int(np.searchsorted(starts, end))
            starts = self._serve_in_order(arrivals[:number], times[:number])
        return starts

    def _serve_in_order(self, arrivals: Floats, times: Floats) -> Floats:
        """Give each request the slot that is free first."""
        free = self._free
        slots = [
            heapreplace(free, (first if (first := free[0]) > arrival else arrival) + seconds)
            for arrival, seconds in zip(arrivals.tolist(), times.tolist(), strict=True)
        ]
        return np.maximum(arrivals, slots)

    def _serve_constant(self, arrivals: Floats, end: int) -> Floats | None:
        """Return the same for constant times, by Lindley's recursion on each slot: they are taken in turn.

        None: slots became free too far apart for that.
        """
        seconds, free = self._constant, np.sort(self._free)
        slots, number = free.size, arrivals.size
        if free[-1] > max(arrivals[0], free[0]) + seconds:
            return None
        rows = -(-number // slots)
        table = np.full(rows * slots, np.inf)
        table[:number] = arrivals
        shift = np.arange(rows)[:, None] * seconds
        table = table.reshape(rows, slots) - shift
        np.maximum(table[0], free, out=table[0])
        np.maximum.accumulate(table, axis=0, out=table)
        starts: Floats = (table + shift).ravel()[:number]
        number = int(np.searchsorted(starts, end)) if starts[-1] >= end else number
        starts = starts[:number]
        last = np.arange(max(0, number - slots), number)  # the last request of each slot that has one
        free[last % slots] = starts[last] + seconds
        self._free = np.sort(free).tolist()  # a sorted list is a heap
        return starts

    def _serve_shared(self, arrivals: list[float], factors: list[float], end: int) -> Floats:
        """Serve requests that slow each other down: each takes the latency of the number in flight as it starts."""
        busy, ready, latencies = self._busy, max(1, self._ready), self._latencies
        limit, last = ready * self.scenario.concurrency, len(latencies) - 1
        starts = []
        self._shared_times = []
        for arrival, factor in zip(arrivals, factors, strict=True):
            start = max(arrival, self._free[0])
            while busy and busy[0] <= start:
                heappop(busy)
            if limit and len(busy) >= limit:
                start = busy[0]
            if start >= end:
                break
            if limit and len(busy) >= limit:
                heappop(busy)
            seconds = latencies[min(last, len(busy) // ready + 1)] * factor
            heappush(busy, start + seconds)
            starts.append(start)
            self._shared_times.append(seconds)
        return np.array(starts)

    def _reject(self, arrivals: Floats, low: int, high: int, now: float) -> tuple[int, int]:
        """Return the range of the requests that may still wait: older ones have expired, newer exceed the queue."""
        scenario, number = self.scenario, high - low
        held = bool(scenario.concurrency) or not self._ready
        limit = scenario.hold_limit if held else scenario.queue_limit * self._ready or number
        deadline = scenario.hold_s if held else scenario.timeout_s
        expired = int(np.searchsorted(arrivals[low:high], now - deadline))
        full = max(0, number - expired - limit)
        self.failures["timeout"] += expired
        self.failures["queue full"] += full
        self._in_system -= expired + full
        return low + expired, high - full

    def _count(self, arrivals: Floats, starts: Floats, times: Floats) -> None:
        """Count the completions of requests that started, by second."""
        self.recording.add(arrivals, starts, times)
        completed = starts + times
        second = completed.astype(np.int64)
        base = int(second.min())
        index = second - base
        counts = np.bincount(index)
        self._completed[base : base + counts.size] += counts
        self._completed_area[base : base + counts.size] += np.bincount(index, weights=second + 1 - completed)

    def _decide(
        self, at: int, arrivals: Floats, starts: Floats, times: Floats, counts: list[float], areas: list[float]
    ) -> int:
        """Sample the load of each second and decide; return the end, or when a decision has changed the replicas."""
        span = len(counts)
        completed, left = self._completed[at : at + span].copy(), self._completed_area[at : at + span].copy()
        if starts.size:
            ends = starts + times
            within = ends[ends < at + span]
            second = within.astype(np.int64)
            completed += np.bincount(second - at, minlength=span)
            left += np.bincount(second - at, weights=second + 1 - within, minlength=span)
        held = [0] * span
        if (self.scenario.concurrency or not self._ready) and arrivals.size:
            seconds = np.arange(at + 1, at + span + 1)
            held = (np.searchsorted(arrivals, seconds) - np.searchsorted(starts, seconds)).tolist()
        before = self.replica_set.desired, len(self.clock.heap)
        latencies = latency_buckets(times) if self.metrics.used else ()
        done, rest = completed.tolist(), left.tolist()
        for offset in range(span):
            now = at + offset + 1
            load = max(0.0, round(self._in_system + areas[offset] - rest[offset], 9))
            self._in_system += counts[offset] - done[offset]
            self._sample(now, load, int(done[offset]), held[offset], latencies, times)
            latencies = (0,) * len(latencies)
            if (now - at) % self._step_s == 0:
                self.replica_set.decide(now)
                if before != (self.replica_set.desired, len(self.clock.heap)):
                    return now
        return at + span

    def _sample(
        self, now: int, load: float, completed: int, held: int, latencies: tuple[int, ...], times: Floats
    ) -> None:
        traffic = self.replica_set.traffic
        in_flight = max(0, round(self._in_system) - held)
        traffic.wait(held, now)
        if load or in_flight or completed:
            report = BackendReport(
                "", "", "", "", load, completed, 0, held, in_flight, latencies=latencies,
                latency_s=float(times.sum()) if latencies else 0.0,
            )  # fmt: skip
            traffic.report(report, now)
            self.metrics.scrape(now, report, [self] * min(1, self._ready))
        else:
            traffic.in_flight = 0
        traffic.tick(now)

    def _run_events(self, until: float) -> None:
        while self.clock.heap and self.clock.heap[0][0] <= until:
            self.clock.run_next()
        self.clock.now = max(self.clock.now, until)

    def _on_ready(self, replica: SimulatedReplica, now: float) -> None:
        self._ready += 1
        for _ in range(self._slots):
            heappush(self._free, now)

    def _on_retire(self, replica: SimulatedReplica, now: float) -> None:
        if self._retiring is not None:
            replica.in_flight = 1  # until its slots are removed
            self._retiring.append(replica)
            return
        self._ready -= 1
        removed = self._free[-self._slots :]
        del self._free[-self._slots :]
        heapify(self._free)
        last = max(removed) if not self._latencies else max(self._busy, default=now)
        self.clock.at(max(now, last), self._drained, replica)

    def _drained(self, now: float, replica: SimulatedReplica) -> None:
        replica.in_flight = 0
        self.replica_set.finished(replica, now)

    def _blocks(self) -> Iterator[tuple[int, Floats, Floats, list[float], list[float]]]:
        """Yield the end of each block, its requests, and by second their number and what is left of it after them."""
        trace, width = self.trace, self.trace.bucket_seconds
        per_block = max(1, round(BLOCK_S / width))
        arrivals, times, first = NONE, NONE, 0
        for low in range(0, trace.counts.size, per_block):
            counts = trace.counts[low : low + per_block]
            high = low + counts.size
            drawn = np.repeat(np.arange(low, high) * width, counts) + self._rng.random(int(counts.sum())) * width
            arrivals = _after(arrivals, np.sort(drawn))  # the times stay in order: they are equal within a bucket
            times = _after(times, self._service_times(low, high, counts))
            steps = (high * width - first) / self._step_s
            until = first + (ceil(steps) if high == trace.counts.size else floor(steps)) * self._step_s
            split = int(np.searchsorted(arrivals, until))
            if seconds := until - first:
                index = np.minimum(arrivals[:split].astype(np.int64) - first, seconds - 1)
                by_second = np.bincount(index, minlength=seconds)
                left = np.bincount(index, weights=index + first + 1 - arrivals[:split], minlength=seconds)
                yield until, arrivals[:split], times[:split], by_second.tolist(), left.tolist()
            arrivals, times, first = arrivals[split:], times[split:], until

    def _service_times(self, low: int, high: int, counts: NDArray[np.int64]) -> Floats:
        """Return the seconds of each request alone, or where requests slow each other down its share of the mean."""
        number = int(counts.sum())
        if self.trace.service_times is not None:
            return np.repeat(self.trace.service_times[low:high], counts)
        times = self.profile.service_times
        if times.llm is not None:
            return np.ones(number)
        samples = np.array(alone(times))
        drawn = np.full(number, samples[0]) if samples.size == 1 else self._rng.choice(samples, number)
        return drawn / samples.mean() if self._latencies else drawn

    def _result(self) -> Simulation:
        usage, recording = self.replica_set.usage, self.recording
        return Simulation(
            self.scenario.name, "approximate", self.end, recording.latency, recording.held, recording.queued,
            recording.served,
            failures={reason: count for reason, count in self.failures.items() if count},
            cold_starts=sum(usage.starts.values()),
            cold_requests=self.cold_requests,
            starts=dict(usage.starts),
            replicas=usage.replicas,
            ready=usage.ready,
            replica_seconds=usage.replica_seconds,
            gpu_seconds=usage.gpu_seconds,
            cpu_seconds=usage.replica_seconds * self.scenario.cpus,
            latency_over_time=recording.over_time,
            assumptions=self.scenario.notes,
        )  # fmt: skip


class Recording:
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


def _after(before: Floats, values: Floats) -> Floats:
    return np.concatenate((before, values)) if before.size else values


def latency_buckets(seconds: Floats) -> tuple[int, ...]:
    index = np.searchsorted(LATENCY_BUCKETS, seconds)
    return tuple(np.bincount(index, minlength=len(LATENCY_BUCKETS) + 1).tolist())


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
    def mean(values: NDArray[np.float64] | None) -> float:
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


def simulate_approximately(
    scenario: Scenario, profile: Profile, trace: Trace | CountTrace, seed: int = 0
) -> Simulation:
    counted = trace.counted() if isinstance(trace, Trace) else trace
    return ApproximateEngine(scenario, profile, counted, seed).run()
