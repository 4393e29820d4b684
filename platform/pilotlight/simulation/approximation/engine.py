"""Approximate simulation of long traces, step by step: autoscaler and replicas as they are, requests in bulk.

Within a step of two seconds all requests of a bucket arrive at random. One queue feeds all replicas, but for requests
that queue in replicas (replica_queues.py). Memory does not grow with the requests.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.control_link import BackendReport
from pilotlight.simulation.approximation.block import NONE, Block, blocks
from pilotlight.simulation.approximation.mean_latencies import alone, latencies_by_concurrency, service_times_of
from pilotlight.simulation.approximation.recorder import Recorder
from pilotlight.simulation.approximation.replica_queues import ReplicaQueues
from pilotlight.simulation.replica_set import ReplicaSet, SimulatedReplica
from pilotlight.simulation.result import Simulation
from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.service_times import Profile
from pilotlight.simulation.trace import CountTrace, Floats, Trace
from pilotlight.simulation.trigger_metrics import TriggerMetrics
from pilotlight.simulation.virtual_clock import VirtualClock

STEP_S: Final = 2
FINE_SECONDS: Final = 200_000  # a trace up to this length has steps of a second if decisions are made each second
MOST_S: Final = 64  # that are served at once
KEEP_S: Final = 86_400  # no request takes longer


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
        in_replicas = not (scenario.concurrency or self._latencies)
        limits = scenario.queue_limit, scenario.timeout_s
        self._queues = ReplicaQueues(self._slots, *limits) if in_replicas else None
        self._busy: list[float] = []  # when each request in flight is complete, if they slow each other down
        self._ready = 0
        seconds = ceil(self.end) + 2 * self._step_s
        self._completed = np.zeros(seconds + KEEP_S)  # requests by second of their completion
        self._completed_area = np.zeros(seconds + KEEP_S)  # what is left of that second after them
        self._in_system = 0.0
        self._span = self._step_s
        self._answered: NDArray[np.bool_] | None = None  # of the last requests served; None: all
        self._retiring: list[SimulatedReplica] | None = None  # while decisions are made ahead of the requests
        self.metrics = TriggerMetrics(scenario, trace.start)
        self.replica_set = ReplicaSet(
            self.scenario, profile, self.end, self._rng, self.clock, self._on_ready, self._on_retire,
            self.metrics.values,
        )  # fmt: skip
        self.recording = Recorder(self.end, bool(scenario.concurrency))

    @property
    def running(self) -> float:
        return min(1.0, self._in_system / max(1, self._ready * self._slots))

    @property
    def queued(self) -> int:
        return 0 if self.scenario.concurrency else max(0, round(self._in_system) - self._ready * self._slots)

    def run(self) -> Simulation:
        self.replica_set.begin(0.0)
        times = self.profile.service_times
        drawn = service_times_of(times, self.trace, bool(self._latencies), self._rng)
        arrivals, seconds, until = NONE, NONE, 0
        for block in blocks(self.trace, self._step_s, drawn, self._rng):
            block.prepend(arrivals, seconds)
            arrivals, seconds = self._run_block(block)
            until = block.until
        while arrivals.size:
            nothing = [0] * self._step_s
            arrivals, seconds = self._run_block(Block(until, arrivals, seconds, nothing, nothing))
            until += self._step_s
        self.recording.flush()
        self.replica_set.close(self.end)
        return self._result()

    def _run_block(self, block: Block) -> tuple[Floats, Floats]:
        """Serve the requests of a block; return those that wait at its end."""
        at = block.first
        while at < block.until:
            span = self._next_span(at, waiting=block.low < block.index[at - block.first])
            at = self._advance(block, at, min(block.until, at + span))
        return block.arrivals[block.low :], block.times[block.low :]

    def _advance(self, block: Block, at: int, end: int) -> int:
        """Serve the requests of several steps at once and decide step by step; return the time that is reached.

        The first decision that changes the replicas ends it: what was served after that is served again.
        """
        free, busy = self._free.copy(), self._busy.copy()
        arrivals, times = block.of(end)
        starts, taken = self._serve(arrivals, times, at, end)
        answered = self._answered
        if end - at > self._step_s and starts.size < arrivals.size:
            self._free, self._busy, self._span = free, busy, self._step_s
            return at
        self._retiring = []
        stop = self._decide(at, arrivals, starts, taken, *block.load(at, end))
        if stop < end:
            self._free, self._busy = free, busy
            arrivals, times = block.of(stop)
            starts, taken = self._serve(arrivals, times, at, stop)
        self._span = min(MOST_S, 2 * (end - at)) if stop == end else self._step_s
        retired, self._retiring = self._retiring, None
        for replica in retired:
            self._on_retire(replica, stop)
        if starts.size:
            self._count(arrivals[: starts.size], starts, taken, answered)
        block.low += starts.size
        if starts.size < arrivals.size:
            block.keep(*self._reject(arrivals[starts.size :], stop), stop)
        return stop

    def _next_span(self, at: int, waiting: bool) -> int:
        """Return how many seconds to serve at once: one step while requests wait or replicas start."""
        heap = self.clock.heap
        if (
            waiting
            or not self._ready
            or self._queues is not None
            or self.metrics.used
            or (heap and heap[0][0] <= at + self._span)
        ):
            return self._step_s
        return self._span

    def _serve(self, arrivals: Floats, times: Floats, begin: int, end: int) -> tuple[Floats, Floats]:
        """Return when the requests start that do so before the end, and how long they take.

        They are the first ones: requests are served in order.
        """
        if not arrivals.size:
            self._run_events(end)
            return NONE, NONE
        if not self._ready:
            self._run_events(begin)
            if not self._ready:
                self.replica_set.wake(max(float(arrivals[0]), float(begin)), 1)
            while not self._ready and self.clock.heap and self.clock.heap[0][0] < end:
                self.clock.run_next()
            cold = arrivals.size if not self._ready else int(np.searchsorted(arrivals, self.clock.now))
            self.cold_requests += cold - int(np.searchsorted(arrivals, begin))
            if not self._ready:
                return NONE, NONE
        self._run_events(end)  # slots of replicas that become ready within the step are free from then on
        if self._queues is not None:
            served = self._queues.serve(arrivals.tolist(), times.tolist(), self.failures)
            self._answered = served[2]
            return served[:2]
        if not self._free:
            return NONE, NONE
        if self._latencies:
            return self._serve_shared(arrivals.tolist(), times.tolist(), end)
        if self._constant and (starts := self._serve_constant(arrivals, end)) is not None:
            return starts, times[: starts.size]
        before = self._free.copy()
        starts = self._serve_in_order(arrivals, times)
        if starts[-1] >= end:
            self._free = before
            number = int(np.searchsorted(starts, end))
            starts = self._serve_in_order(arrivals[:number], times[:number])
        return starts, times[: starts.size]

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

    def _serve_shared(self, arrivals: list[float], factors: list[float], end: int) -> tuple[Floats, Floats]:
        """Serve requests that slow each other down: each takes the latency of the number in flight as it starts."""
        busy, ready, latencies = self._busy, max(1, self._ready), self._latencies
        limit, last = ready * self.scenario.concurrency, len(latencies) - 1
        starts, times = [], []
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
            times.append(seconds)
        return np.array(starts), np.array(times)

    def _reject(self, arrivals: Floats, now: float) -> tuple[int, int]:
        """Return how many of those that wait have expired, and how many of the newest exceed the queue."""
        scenario, number = self.scenario, arrivals.size
        held = bool(scenario.concurrency) or not self._ready
        limit = scenario.hold_limit if held else scenario.queue_limit * self._ready or number
        deadline = scenario.hold_s if held else scenario.timeout_s
        expired = int(np.searchsorted(arrivals, now - deadline))
        full = max(0, number - expired - limit)
        self.failures["timeout"] += expired
        self.failures["queue full"] += full
        self._in_system -= expired + full
        return expired, full

    def _count(self, arrivals: Floats, starts: Floats, times: Floats, answered: NDArray[np.bool_] | None) -> None:
        """Count the completions of requests that started, by second."""
        if answered is None or answered.all():
            self.recording.add(arrivals, starts, times)
        elif answered.any():
            self.recording.add(arrivals[answered], starts[answered], times[answered])
        completed = starts + times
        second = completed.astype(np.int64)
        base = int(second.min())
        index = second - base
        counts = np.bincount(index)
        self._completed[base : base + counts.size] += counts
        self._completed_area[base : base + counts.size] += np.bincount(index, weights=second + 1 - completed)

    def _decide(
        self, at: int, arrivals: Floats, starts: Floats, times: Floats, counts: Sequence[float], areas: Sequence[float]
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
        latencies: tuple[int, ...] = ()
        if self.metrics.used:
            index = np.searchsorted(LATENCY_BUCKETS, times)
            latencies = tuple(np.bincount(index, minlength=len(LATENCY_BUCKETS) + 1).tolist())
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
        if self._queues is not None:
            self._queues.add(replica.id, now)
            return
        for _ in range(self._slots):
            heappush(self._free, now)

    def _on_retire(self, replica: SimulatedReplica, now: float) -> None:
        if self._retiring is not None:
            replica.in_flight = 1  # until its slots are removed
            self._retiring.append(replica)
            return
        self._ready -= 1
        if self._queues is not None:
            self.clock.at(max(now, self._queues.remove(replica.id)), self._drained, replica)
            return
        removed = self._free[-self._slots :]
        del self._free[-self._slots :]
        heapify(self._free)
        last = max(removed) if not self._latencies else max(self._busy, default=now)
        self.clock.at(max(now, last), self._drained, replica)

    def _drained(self, now: float, replica: SimulatedReplica) -> None:
        replica.in_flight = 0
        self.replica_set.finished(now, replica)

    def _result(self) -> Simulation:
        recording = self.recording
        simulation = self.replica_set.simulation(
            "approximate", recording.latency, recording.held, recording.queued, recording.served
        )
        return replace(
            simulation,
            failures={reason: count for reason, count in self.failures.items() if count},
            cold_requests=self.cold_requests,
            latency_over_time=recording.over_time.points(),
        )


def simulate_approximately(
    scenario: Scenario, profile: Profile, trace: Trace | CountTrace, seed: int = 0
) -> Simulation:
    counted = trace.counted() if isinstance(trace, Trace) else trace
    return ApproximateEngine(scenario, profile, counted, seed).run()
