"""Exact simulation: every request passes the gateway's own queue and a replica, on virtual time.

The gateway's `LiveBackend` holds requests, rejects them and chooses replicas; replica_set.py starts and ends these;
stations.py stands for the model in them.
"""

from array import array
from collections import Counter
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from pilotlight.gateway.control_link import Wake
from pilotlight.gateway.proxy.backend import BufferBudget, LiveBackend
from pilotlight.gateway.proxy.responses import ErrorResponse
from pilotlight.gateway.proxy.upstream import LiveReplica
from pilotlight.gateway.routing_table import Backend, Replica
from pilotlight.simulation.replica_set import ReplicaSet, SimulatedReplica
from pilotlight.simulation.result import LatencyHistogram, LatencyOverTime, Simulation
from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.service_times import Profile
from pilotlight.simulation.stations import (
    DEFAULT_SERVICE_TIME_S,
    BatchStation,
    FifoStation,
    LlmStation,
    SharedStation,
    Station,
)
from pilotlight.simulation.trace import Trace
from pilotlight.simulation.trigger_metrics import LlmLoad, TriggerMetrics
from pilotlight.simulation.virtual_clock import VirtualClock

TICK_S: Final = 1.0  # of the gateway's reports
DEFAULT_TOKENS: Final = 200  # of a request, where neither trace nor profile says more


class Request:
    """One request; the gateway's queue and the station in the replica know the fields they need."""

    __slots__ = (
        "arrived_at", "backend", "cold", "enqueued_ns", "first_token_at", "input_tokens", "live", "output_tokens",
        "sent_at", "service_s", "started_at",
    )  # fmt: skip
    max_hold_s = inf
    prompt = None
    buffered = 0
    tag = ""
    key = ("", "")
    rows = 1
    signature = None
    engine: "ExactEngine"

    def __init__(self, arrived_at: float, service_s: float) -> None:
        self.arrived_at, self.service_s = arrived_at, service_s
        self.cold = False
        self.backend: LiveBackend | None = None
        self.live: LiveReplica | None = None
        self.sent_at = self.started_at = self.first_token_at = 0.0
        self.enqueued_ns = self.input_tokens = self.output_tokens = 0

    def assign(self, replica: LiveReplica, now: float) -> None:
        self.sent_at = now
        self.live = replica
        engine = self.engine
        engine.serving[replica.id].station.submit(self, now)

    def reject(self, error: ErrorResponse) -> None:
        self.engine.fail(self, "queue full" if "wait for" in str(error) else "timeout")


class ActivatorBackend(LiveBackend):
    """Queue of Knative's activator: without a limit of requests it picks the less loaded of two random replicas."""

    def __init__(self, *arguments: Any, seed: int) -> None:
        super().__init__(*arguments)
        self._random = Random(seed)  # noqa: S311 - not for secrets

    def _pick(self, request: Any, now: float) -> LiveReplica | None:
        if self.config.concurrency or len(self.replicas) < 2:
            return super()._pick(request, now)
        return min(self._random.sample(self.replicas, 2), key=lambda replica: replica.in_flight)


class Serving(NamedTuple):
    replica: SimulatedReplica
    station: Station


class Recording(NamedTuple):
    """Times of answered requests, by order of their answers."""

    arrived: "array[float]"
    latency: "array[float]"
    held: "array[float]"
    queued: "array[float]"
    served: "array[float]"
    first_token: "array[float]"


class ExactEngine:
    def __init__(self, scenario: Scenario, profile: Profile, trace: Trace, seed: int) -> None:
        self.scenario, self.profile, self.trace = scenario, profile, trace
        self.clock = VirtualClock()
        self.end = trace.seconds
        rng = self._rng = np.random.default_rng(seed)
        self.failures: Counter[str] = Counter()
        self.recording = Recording(*(array("d") for _ in range(6)))
        self.cold_requests = 0
        self.serving: dict[str, Serving] = {}
        key = (scenario.namespace, scenario.name)
        self._config = Backend(
            scenario.name, scenario.name, 100, concurrency=scenario.concurrency, hold_s=scenario.hold_s,
            hold_limit=scenario.hold_limit,
        )  # fmt: skip
        clock = self.clock
        backend = partial(ActivatorBackend, seed=seed) if scenario.activator else LiveBackend
        self.backend = backend(key, self._config, self._on_wake, lambda: clock.now, BufferBudget())
        self._is_llm = profile.service_times.llm is not None
        self._first_tokens = 0  # that a scrape has had
        self.metrics = TriggerMetrics(scenario, trace.start, self._llm_load if self._is_llm else None)
        self.replica_set = ReplicaSet(
            scenario, profile, self.end, rng, clock, self._on_ready, self._on_retire, self.metrics.values
        )
        self._ticking = False
        self._remaining = trace.requests
        self.Request = type("Request", (Request,), {"engine": self, "key": key, "__slots__": ()})

    def run(self) -> Simulation:
        arrivals: list[float] = self.trace.arrivals.tolist()
        clock, heap, backend = self.clock, self.clock.heap, self.backend
        times = service_times(self.profile, self.trace, self._rng)
        requests = self._llm_requests(arrivals) if self._is_llm else map(self.Request, arrivals, times)
        with clock.running():
            self.replica_set.begin(0.0)
            self._resume(0.0)
            closing_at = self.end
            for arrival, request in zip(arrivals, requests, strict=True):
                while heap and heap[0][0] <= arrival:
                    clock.run_next()
                clock.now = arrival
                backend.submit(request, arrival)
            while heap and (self._remaining or heap[0][0] <= closing_at):
                clock.run_next()
            self.replica_set.close(max(clock.now, self.end))
        return self._result()

    def _llm_requests(self, arrivals: list[float]) -> Any:
        trace = self.trace
        tokens = [
            np.full(trace.requests, DEFAULT_TOKENS) if values is None else values
            for values in (trace.input_tokens, trace.output_tokens)
        ]
        for arrival, asked, answered in zip(arrivals, tokens[0].tolist(), tokens[1].tolist(), strict=True):
            request = self.Request(arrival, 0.0)
            request.input_tokens, request.output_tokens = asked, answered
            yield request

    def _resume(self, now: float) -> None:
        if not self._ticking:
            self._ticking = True
            # The activator reports by a clock of its own.
            self.clock.at(now + (self._rng.uniform(0, TICK_S) if self.scenario.activator else TICK_S), self._tick)

    def _tick(self, now: float, _: Any) -> None:
        backend, scenario = self.backend, self.scenario
        report = backend.counts.take_report(backend.key, scenario.name, scenario.name, len(backend.waiting), now)
        if report is not None:
            self.replica_set.traffic.report(report, now)
        else:
            self.replica_set.traffic.in_flight = self.replica_set.traffic.waiting = 0
        self.metrics.scrape(now, report, [each.station for each in self.serving.values()])
        busy = self.replica_set.tick(now)
        if (busy or backend.counts.load) and (now < self.end or self._remaining):
            self.clock.at(now + TICK_S, self._tick)
        else:
            self._ticking = False

    def _llm_load(self, now: float) -> LlmLoad:
        stations = [each.station for each in self.serving.values() if isinstance(each.station, LlmStation)]
        held: Any = self.backend.waiting
        waiting = sum(request.input_tokens for request in held) + sum(each.tokens_waiting for each in stations)
        first = self.recording.first_token[self._first_tokens :]
        self._first_tokens += len(first)
        rates = self.profile.service_times.llm
        known = rates is not None and rates.kv_cache_tokens and stations
        cache = sum(each.cache_usage(now) for each in stations) / len(stations) if known else None
        return LlmLoad(waiting, first, cache)

    def _on_wake(self, wake: Wake) -> None:
        self._resume(self.clock.now)
        self.replica_set.wake(self.clock.now, wake.waiting)

    def _on_ready(self, replica: SimulatedReplica, now: float) -> None:
        self.serving[replica.id] = Serving(replica, self._station())
        self._publish()

    def _on_retire(self, replica: SimulatedReplica, now: float) -> None:
        replica.in_flight = next(each.in_flight for each in self.backend.replicas if each.id == replica.id)
        self._publish()
        if not replica.in_flight:
            del self.serving[replica.id]

    def _publish(self) -> None:
        ready = tuple(Replica(name, 1) for name, each in self.serving.items() if each.replica.state == "ready")
        self.backend.update(structs.replace(self._config, replicas=ready))

    def _station(self) -> Station:
        times, scenario, clock = self.profile.service_times, self.scenario, self.clock
        if times.llm is not None:
            return LlmStation(clock, self.done, times.llm, scenario.queue_limit, scenario.timeout_s)
        if self.trace.service_times is None and times.by_batch:
            return BatchStation(clock, self.done, times, scenario.queue_limit, scenario.timeout_s, self._rng)
        if self.trace.service_times is None and times.by_concurrency:
            return SharedStation(clock, self.done, times.by_concurrency, self._rng)
        return FifoStation(clock, self.done, times.parallel, scenario.queue_limit, scenario.timeout_s)

    def done(self, request: Request, now: float, failure: str) -> None:
        """End a request that a replica had."""
        live = request.live
        assert live is not None
        latency = now - request.sent_at
        if latency > self.scenario.timeout_s:
            failure = failure or "timeout"
        self._remaining -= 1
        self.backend.counts.responded(now, 503 if failure else 200, request.sent_at)
        if failure:
            self.failures[failure] += 1
        else:
            recording = self.recording
            recording.arrived.append(request.arrived_at)
            recording.latency.append(now - request.arrived_at)
            recording.held.append(request.sent_at - request.arrived_at)
            recording.queued.append(request.started_at - request.sent_at)
            recording.served.append(now - request.started_at)
            if self._is_llm:
                recording.first_token.append(request.first_token_at - request.arrived_at)
        self.cold_requests += request.cold
        self.backend.release(live)
        if live.retired:
            replica = self.serving[live.id].replica
            replica.in_flight = live.in_flight
            if not live.in_flight:
                del self.serving[live.id]
                self.replica_set.finished(now, replica)

    def fail(self, request: Request, reason: str) -> None:
        """Count a request that no replica got."""
        self._remaining -= 1
        self.failures[reason] += 1
        self.cold_requests += request.cold

    def _result(self) -> Simulation:
        arrived, latency, held, queued, served, first = map(np.asarray, self.recording)
        order, over_time = np.argsort(arrived, kind="stable"), LatencyOverTime(self.end)
        over_time.add(arrived[order], latency[order])
        simulation = self.replica_set.simulation(
            "exact", histogram(latency), histogram(held[held > 0]), histogram(queued), histogram(served)
        )
        return replace(
            simulation,
            failures=dict(self.failures),
            cold_requests=self.cold_requests,
            first_token=histogram(first) if self._is_llm else None,
            latency_over_time=over_time.points(),
        )


def histogram(seconds: NDArray[np.float64]) -> LatencyHistogram:
    result = LatencyHistogram()
    result.add(seconds)
    return result


def service_times(profile: Profile, trace: Trace, rng: np.random.Generator) -> list[float]:
    """Return the seconds that each request takes alone: of the trace, sampled from the profile, or the default."""
    if trace.service_times is not None:
        return trace.service_times.tolist()  # type: ignore[no-any-return]
    samples = profile.service_times.samples or (DEFAULT_SERVICE_TIME_S,)
    if len(samples) == 1:
        return [samples[0]] * trace.requests
    return rng.choice(np.array(samples), trace.requests).tolist()  # type: ignore[no-any-return]


def simulate_exactly(scenario: Scenario, profile: Profile, trace: Trace, seed: int = 0) -> Simulation:
    return ExactEngine(scenario, profile, trace, seed).run()
