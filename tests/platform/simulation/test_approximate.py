"""The approximation against the exact simulation of the same trace, and what it takes for a week of requests."""

import resource
from collections import Counter
from time import process_time

import numpy as np
import pytest
from tests.platform.simulation.scenarios import constant, kpa, scenario

from pilotlight.simulation.approximation.engine import simulate_approximately
from pilotlight.simulation.approximation.replica_queues import ReplicaQueues
from pilotlight.simulation.exact import ExactEngine, simulate_exactly
from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.service_times import Profile, ServiceTimes
from pilotlight.simulation.simulate import MAX_EXACT, simulate
from pilotlight.simulation.trace import CountTrace, Trace
from pilotlight.simulation.traces.table import read_trace
from pilotlight.targets.local.scaling.types import Fixed

EXPONENTIAL = tuple(np.random.default_rng(0).exponential(0.05, 2000).tolist())
FOUR = scenario(kpa(target=4, container_concurrency=4), concurrency=4)
RANDOM = Profile(ServiceTimes(EXPONENTIAL)).with_cold_start("process", 4.0)
SPREAD = scenario(kpa(target=2, container_concurrency=0))  # requests queue in replicas
KNATIVE = scenario(
    kpa(target=4, container_concurrency=4, grace_s=30.0), concurrency=4, tick_s=2.0, drain_s=30.0, idle_drain_s=30.0
)


@pytest.mark.parametrize(
    ("simulated", "profile", "trace"),
    [
        (FOUR, constant(0.1, 4), "bursts:rate=2,burst=60,every=300,length=30,duration=1h,seed=1"),
        (FOUR, constant(0.1, 4), "spikes:rate=5,peak=80,every=600,decay=30,duration=1h,seed=1"),
        (KNATIVE, constant(0.1, 4), "diurnal:rate=30,period=1h,duration=1h,seed=1"),
        (scenario(kpa(), concurrency=2), constant(0.05, 2), "diurnal:rate=20,period=1h,duration=1h"),
        (
            scenario(kpa(target=1, container_concurrency=1), concurrency=1),
            RANDOM,
            "poisson:rate=40,duration=20m,seed=1",
        ),
        (scenario(kpa(target=10)), constant(0.05, cold_start=4.0), "poisson:rate=0.01,duration=3h,seed=1"),
        (scenario(Fixed(1)), constant(0.05), "poisson:rate=14,duration=1h,seed=2"),
        (scenario(Fixed(3)), RANDOM, "poisson:rate=40,duration=20m,seed=1"),
        (SPREAD, RANDOM, "bursts:rate=2,burst=60,every=300,length=30,duration=20m,seed=1"),
        (SPREAD, constant(0.1, 2), "diurnal:rate=30,period=20m,duration=20m,seed=1"),
    ],
    ids=[
        "bursts",
        "spikes",
        "knative",
        "diurnal",
        "exponential",
        "sparse",
        "md1",
        "queues in replicas",
        "bursts to replicas",
        "diurnal to replicas",
    ],
)
def test_its_99th_percentile_is_within_5_percent(simulated: Scenario, profile: Profile, trace: str) -> None:
    arrivals = read_trace(trace)
    assert isinstance(arrivals, Trace)
    exact, approximate = (
        simulate_exactly(simulated, profile, arrivals),
        simulate_approximately(simulated, profile, arrivals),
    )
    assert approximate.requests == exact.requests
    for figure in ("p50", "p99", "replica_seconds"):
        assert approximate.figures()[figure] == pytest.approx(exact.figures()[figure], rel=0.05), figure


def test_requests_beyond_the_queue_and_the_deadline_fail_in_both() -> None:
    full = scenario(Fixed(1), concurrency=1, hold_s=2.0, hold_limit=50)
    arrivals = read_trace("poisson:rate=40,duration=10m,seed=1")
    assert isinstance(arrivals, Trace)
    exact, approximate = (
        run(full, constant(0.05), arrivals) for run in (simulate_exactly, simulate_approximately)
    )  # fmt: skip
    assert exact.failed > 10_000
    assert approximate.failed == pytest.approx(exact.failed, rel=0.05)
    assert approximate.requests == exact.requests == arrivals.requests


@pytest.mark.parametrize(("slots", "limit", "timeout_s"), [(1, 0, 1e9), (2, 0, 1e9), (1, 4, 1e9), (1, 0, 0.3)])
def test_queues_in_replicas_are_those_of_single_requests(slots: int, limit: int, timeout_s: float) -> None:
    random, size, count = np.random.default_rng(3), 5000, 3
    times = random.exponential(0.05, size)
    arrivals = np.cumsum(random.exponential(0.05 / slots / count / 0.95, size))
    simulated = scenario(Fixed(count), queue_limit=limit, timeout_s=timeout_s)
    engine = ExactEngine(simulated, Profile(ServiceTimes(parallel=slots)), Trace(arrivals, times), 0)
    engine.run()
    queues, failures = ReplicaQueues(slots, limit, timeout_s), Counter[str]()
    for number in range(count):
        queues.add(str(number), 0.0)
    starts, taken, answered = queues.serve(arrivals.tolist(), times.tolist(), failures)
    latency = (starts + taken - arrivals)[answered]
    assert failures == engine.failures
    assert sorted(latency) == pytest.approx(sorted(engine.recording.latency))


def test_a_replica_that_is_ready_later_gets_only_later_requests() -> None:
    queues = ReplicaQueues(1, 0, 1e9)
    queues.add("first", 2.0)
    queues.add("second", 2.5)
    starts, _, _ = queues.serve([1.0, 1.5, 2.6], [1.0, 1.0, 1.0], Counter())
    assert starts.tolist() == [2.0, 3.0, 2.6]
    assert queues.remove("second") == 3.6
    starts, _, _ = queues.serve([3.5], [1.0], Counter())
    assert starts.tolist() == [4.0]


def test_it_is_chosen_for_what_would_take_too_long() -> None:
    many = CountTrace(60.0, np.full(60, MAX_EXACT // 50))
    assert simulate(FOUR, constant(0.001, 4), many).method == "approximate"
    assert simulate(FOUR, constant(0.1, 4), CountTrace(60.0, np.full(10, 100))).method == "exact"


SHARED = 2  # CPU time of a core whose other thread and cache have other work, beside that of an idle one


def peak_memory() -> int:
    """Return KiB, of this process since its start."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.long
def test_a_week_of_60_million_requests_takes_less_than_a_minute_and_little_memory() -> None:
    week = read_trace("diurnal:rate=100,period=1d,duration=7d,seed=1")
    assert isinstance(week, CountTrace)
    before, memory = process_time(), peak_memory()
    result = simulate(KNATIVE, constant(0.1, 4), week)
    assert result.requests == week.requests > 59_000_000
    assert process_time() - before < 60 * SHARED
    assert peak_memory() - memory < 200 * 1024


@pytest.mark.long
def test_a_million_requests_are_simulated_exactly_in_less_than_a_minute() -> None:
    arrivals = read_trace("poisson:rate=100,duration=10000s,seed=1")
    assert isinstance(arrivals, Trace)
    before = process_time()
    assert simulate(FOUR, constant(0.1, 4), arrivals).method == "exact"
    assert process_time() - before < 60
