"""Replicas on virtual time: the autoscalers' decisions, scarce GPUs, drains, parking; requests are never lost."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.simulation.scenarios import constant, kpa, poisson, scenario

from pilotlight.k8s.cron import Schedule
from pilotlight.release.plan_and_render import Sources, plan_documents, read
from pilotlight.simulation.approximation.engine import simulate_approximately
from pilotlight.simulation.exact import ExactEngine, simulate_exactly
from pilotlight.simulation.result import Simulation
from pilotlight.simulation.scenario import Scenario, scenario_of
from pilotlight.simulation.service_times import ColdStart, Profile, ServiceTimes
from pilotlight.simulation.trace import Trace
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Metric, Policy, ScalingRules

EXAMPLES = Path(__file__).parents[3] / "examples" / "services"
TWO_BURSTS = Trace(np.concatenate((np.linspace(0, 20, 400), np.linspace(200, 220, 400))), duration=400.0)


def count_at(result: Simulation, at: float) -> int:
    return [count for since, count in result.replicas if since <= at][-1]


@pytest.mark.parametrize(("target", "expected"), [(2.0, 5), (4.0, 3), (10.0, 1)])
def test_a_steady_load_gets_the_count_of_knatives_formula(target: float, expected: int) -> None:
    """Six requests in flight on average; a replica is to have 70 % of its target."""
    steady = Trace(np.arange(0, 200, 0.05) + 0.01)
    rules = kpa(target=target, container_concurrency=0)
    result = simulate_exactly(scenario(rules), constant(0.295, 100), steady)
    assert count_at(result, 190) == expected


def test_a_burst_is_met_in_panic_mode_and_replicas_leave_when_the_window_is_over() -> None:
    """Knative: the panic window is a tenth of the window, and nothing is removed until a window without panic."""
    steps = np.concatenate((np.arange(0, 100, 0.5), np.arange(100, 130, 0.02), np.arange(130, 300, 0.5)))
    result = simulate_exactly(scenario(kpa(container_concurrency=0)), constant(0.3, 100), Trace(steps))
    assert count_at(result, 99) == 1
    assert count_at(result, 108) >= 10  # 15 requests in flight, 1.4 for each replica
    assert count_at(result, 150) == result.max_replicas
    assert count_at(result, 290) == 1


def test_a_service_ends_at_zero_after_its_window() -> None:
    result = simulate_exactly(scenario(kpa(window_s=20.0)), constant(0.05), TWO_BURSTS)
    assert count_at(result, 100) == 0
    assert count_at(result, 205) > 0
    assert count_at(result, 399) == 0
    assert result.starts["process"] == result.cold_starts >= 2


def test_keda_scales_by_requests_at_the_gateway() -> None:
    quick = ScalingRules((Policy("Percent", 100, 1),), "Max", 0.0)
    metric = Metric("requests", "requests", "AverageValue", 4.0)
    rules = Hpa(0, 5, (metric,), quick, quick, keda=True, polling_s=5.0, cooldown_s=30.0)
    result = simulate_exactly(scenario(rules), constant(0.4, 4), TWO_BURSTS)
    assert 2 <= result.max_replicas <= 5
    assert count_at(result, 199) == 0
    assert result.failed == 0


def test_on_a_cluster_keda_reads_the_requests_of_the_moment() -> None:
    """Three wait when the HPA asks. KEDA's cooldown counts from the last response, and is read every 5 s."""
    quick = ScalingRules((Policy("Percent", 100, 1),), "Max", 0.0)
    metric = Metric("requests", "requests", "AverageValue", 2.0)
    rules = Hpa(0, 5, (metric,), quick, quick, keda=True, polling_s=5.0, cooldown_s=20.0)
    three = Trace(np.array([0.0, 3.5, 4.5]), duration=120.0)
    profile = constant(0.1, cold_start=12.0)
    result, draining = (
        simulate_exactly(scenario(rules, tick_s=5.0, external_push=True, drain_s=drain_s), profile, three)
        for drain_s in (0.0, 30.0)
    )
    assert [count for _, count in result.replicas] == [1, 2, 1, 0]
    second_start, zero = result.replicas[1][0], result.replicas[-1][0]
    assert 4.5 <= second_start <= 11
    assert 32 <= zero <= 43
    assert draining.replica_seconds - result.replica_seconds == pytest.approx(30)  # not for the last one, which is idle


@pytest.mark.parametrize(("example", "pushed"), [("iris-wake", True), ("iris-latency", False)])
def test_only_a_trigger_of_the_gateway_is_pushed(example: str, pushed: bool) -> None:
    planned = plan_documents(read(Sources([str(EXAMPLES / f"{example}.yaml")])))
    assert scenario_of(planned.plans[0], planned.manifests(), embedded=False).external_push is pushed
    assert not scenario_of(planned.plans[0], planned.manifests(), embedded=True).external_push


def test_on_a_cluster_the_clock_of_the_autoscaler_has_a_phase() -> None:
    """The first decision comes within an interval of the first request, at another time with another seed."""
    simulated, profile = scenario(kpa(target=1.0), tick_s=5.0), constant(0.3, cold_start=20.0)
    steady = Trace(np.arange(0, 12, 0.25))
    results = [simulate_exactly(simulated, profile, steady, seed) for seed in range(8)]
    second = {next(at for at, count in result.replicas if count > 1) for result in results}
    assert len(second) >= 4
    assert max(second) - min(second) <= 5


def test_cpu_of_busy_replicas_scales_an_hpa() -> None:
    quick = ScalingRules((Policy("Percent", 100, 1),), "Max", 0.0)
    rules = Hpa(1, 6, (Metric("cpu", "cpu", "Utilization", 50.0),), quick, quick)
    busy = simulate_exactly(scenario(rules), constant(0.09), poisson(10, 1500))
    idle = simulate_exactly(scenario(rules), constant(0.01), poisson(10, 1500))
    assert busy.max_replicas >= 2
    assert idle.max_replicas == 1


def test_a_new_replica_waits_for_the_gpu_of_one_that_drains() -> None:
    """With Knative a pod that ends has its GPU for 30 s more; on one machine as long as its last request."""
    gap = Trace(np.array([0.0, 100.0]), duration=200.0)
    fields = {"gpus": 1, "devices": 1, "tick_s": 2.0}
    slow = simulate_exactly(scenario(kpa(window_s=93.0, grace_s=0.0), idle_drain_s=30.0, **fields), constant(0.1), gap)
    quick = simulate_exactly(scenario(kpa(window_s=93.0, grace_s=0.0), **fields), constant(0.1), gap)
    assert quick.latency.quantile(1.0) == pytest.approx(2.1, abs=0.1)
    assert slow.latency.quantile(1.0) > 20
    assert slow.gpu_seconds > quick.gpu_seconds


def test_replicas_beyond_the_gpus_wait_and_cost_nothing() -> None:
    result = simulate_exactly(scenario(kpa(), concurrency=2, gpus=1, devices=2), constant(0.2, 2), poisson(40, 4000))
    assert max(count for _, count in result.ready) == 2
    assert result.gpu_seconds <= 2 * result.seconds + 1
    assert result.max_replicas > 2  # the autoscaler wants more


def test_a_parked_replica_returns_by_its_own_start() -> None:
    profile = constant(0.05, cold_start=10.0).with_cold_start("parked", 0.3)
    result = simulate_exactly(scenario(kpa(window_s=20.0), parks=True), profile, TWO_BURSTS)
    assert result.starts["parked"] >= 1
    plain = simulate_exactly(scenario(kpa(window_s=20.0)), profile, TWO_BURSTS)
    assert result.latency.mean < plain.latency.mean


def test_the_pilot_light_starts_replicas_as_measured() -> None:
    profile = constant(0.05, cold_start=10.0).with_cold_start("pilot-light", 0.1)
    result = simulate_exactly(scenario(kpa(window_s=20.0), start="pilot-light"), profile, TWO_BURSTS)
    assert result.latency.quantile(0.99) < 1.5
    assert set(result.starts) == {"pilot-light"}


@pytest.mark.parametrize(("cores", "seconds"), [(None, 5.0), (4, 5.0), (2, 7.0), (1, 11.0)])
def test_replicas_that_start_at_once_share_the_cores(cores: int | None, seconds: float) -> None:
    """Each needs two seconds of a core and three more."""
    profile = Profile(ServiceTimes((0.05,)), {"process": ColdStart({"total": (5.0,)}, cpu_s=2.0)})
    together = scenario(kpa(activation_scale=4, window_s=60.0), cores=cores)
    result = simulate_exactly(together, profile, Trace(np.zeros(1), duration=30.0))
    assert result.ready[-1] == (pytest.approx(seconds), 4)


def test_knatives_activator_queues_more_in_a_replica_than_our_gateway() -> None:
    """It compares two random replicas of four; with a limit of one request neither queues in a replica."""
    load, profile = poisson(12, 4000), constant(0.25)
    means = {
        (limit, activator): simulate_exactly(
            scenario(Fixed(4), concurrency=limit, activator=activator, tick_s=2.0), profile, load
        ).queued.mean
        for limit in (0, 1)
        for activator in (True, False)
    }
    assert means[0, True] > 1.2 * means[0, False] > 0
    assert means[1, True] == means[1, False] == 0


def test_requests_that_wait_too_long_or_exceed_the_queue_fail() -> None:
    result = simulate_exactly(
        scenario(kpa(), hold_s=1.0, hold_limit=30), constant(0.05, cold_start=5.0), Trace(np.linspace(0, 0.9, 40))
    )
    assert result.failures == {"queue full": 10, "timeout": 30}
    assert result.attainment(1.0) == 0.0


def test_a_replica_is_paid_from_its_start_to_its_end() -> None:
    result = simulate_exactly(scenario(Fixed(3), gpus=2), constant(0.05), poisson(1, 60))
    assert result.replica_seconds == pytest.approx(3 * result.seconds)
    assert result.gpu_hours == pytest.approx(6 * result.seconds / 3600)


gaps = st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=60)
scenarios = st.builds(
    lambda window, concurrency, hold, limit, least, devices: scenario(
        kpa(window_s=window, min_scale=least), concurrency=concurrency, hold_s=hold, hold_limit=limit, timeout_s=60.0,
        queue_limit=5, gpus=1, devices=devices,
    ),
    st.sampled_from((6.0, 20.0)), st.sampled_from((0, 1, 3)), st.sampled_from((0.5, 10.0)), st.integers(0, 20),
    st.integers(0, 2), st.sampled_from((None, 1, 3)),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(gaps, scenarios, st.floats(0.01, 8), st.floats(0.01, 8))
def test_every_request_is_answered_or_fails_and_its_parts_add_up(
    gaps: list[float], simulated: Scenario, seconds: float, cold_start: float
) -> None:
    trace = Trace(np.cumsum(gaps))
    engine = ExactEngine(simulated, constant(seconds, 1, cold_start), trace, 0)
    result = engine.run()
    assert result.latency.count + result.failed == trace.requests
    parts = (
        np.frombuffer(times) for times in (engine.recording.held, engine.recording.queued, engine.recording.served)
    )
    assert np.allclose(sum(parts), np.frombuffer(engine.recording.latency))
    assert all(count >= 0 for _, count in result.replicas)
    if simulated.devices is not None:
        assert max((count for _, count in result.ready), default=0) <= simulated.devices
        assert result.gpu_seconds <= simulated.devices * result.seconds + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.3, 0.95))
def test_more_replicas_never_make_requests_slower(seed: int, replicas: int, load: float) -> None:
    services = np.random.default_rng(seed).exponential(0.1, 300)
    trace = poisson(load * replicas / 0.1, 300, seed, services)
    few, more = (
        simulate_exactly(scenario(Fixed(count), concurrency=1), Profile(), trace) for count in (replicas, replicas + 1)
    )
    for share in (0.5, 0.95, 0.99):
        assert more.latency.quantile(share) <= few.latency.quantile(share) + 1e-9


def test_a_schedule_starts_replicas_before_requests_come() -> None:
    quick = ScalingRules((Policy("Percent", 100, 1),), "Max", 0.0)
    schedule = Schedule("10 * * * *", "20 * * * *", "UTC", 2)
    metrics = (
        Metric("requests", "requests", "AverageValue", 4.0),
        Metric("s", "cron", "AverageValue", 1.0, schedule=schedule),
    )
    rules = Hpa(0, 5, metrics, quick, quick, keda=True, polling_s=5.0, cooldown_s=30.0)
    start = datetime(2026, 11, 18, 10, tzinfo=UTC)
    trace = Trace(np.array([615.0, 616.0]), start=start, duration=3600.0)
    for simulated in (simulate_exactly, simulate_approximately):
        result = simulated(scenario(rules), constant(0.1, cold_start=5.0), trace)
        assert [count_at(result, at) for at in (500.0, 610.0, 1000.0, 1500.0)] == [0, 2, 2, 0]
        assert result.latency.quantile(1.0) < 0.5
        assert result.replica_seconds == pytest.approx(2 * 600, rel=0.1)
