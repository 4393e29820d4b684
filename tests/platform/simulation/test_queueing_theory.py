"""Simulated queues against what queueing theory knows about them."""

from math import exp, factorial

import numpy as np
import pytest
from tests.platform.simulation.scenarios import constant, kpa, poisson, scenario

from pilotlight.simulation.exact import ExactEngine, simulate_exactly
from pilotlight.simulation.service_times import Profile, ServiceTimes
from pilotlight.targets.local.scaling.types import Fixed

N = 150_000


def test_one_server_with_exponential_times_is_m_m_1() -> None:
    services = np.random.default_rng(7).exponential(0.07, N)
    result = simulate_exactly(scenario(), Profile(), poisson(10, N, services=services))
    mean = 0.07 / (1 - 0.7)  # the time in the system is exponential
    assert result.latency.mean == pytest.approx(mean, rel=0.05)
    assert result.latency.quantile(0.95) == pytest.approx(mean * np.log(20), rel=0.05)
    assert result.latency.quantile(0.5) == pytest.approx(mean * np.log(2), rel=0.05)


@pytest.mark.parametrize("variation", [0.0, 0.5, 2.0])
def test_the_mean_wait_of_one_server_follows_pollaczek_and_khinchine(variation: float) -> None:
    random, load, mean = np.random.default_rng(3), 0.6, 0.06
    services = random.gamma(1 / variation, mean * variation, N) if variation else np.full(N, mean)
    result = simulate_exactly(scenario(), Profile(), poisson(load / mean, N, services=services))
    wait = load * mean * (1 + variation) / (2 * (1 - load))
    assert result.queued.mean == pytest.approx(wait, rel=0.05)


@pytest.mark.parametrize("servers", [2, 5])
def test_several_servers_wait_as_often_as_erlang_says(servers: int) -> None:
    load = 0.75 * servers
    services = np.random.default_rng(5).exponential(0.05, N)
    trace = poisson(load / 0.05, N, services=services)
    result = simulate_exactly(scenario(concurrency=servers), Profile(ServiceTimes(parallel=servers)), trace)
    blocked = load**servers / factorial(servers) / (1 - load / servers)
    erlang = blocked / (sum(load**k / factorial(k) for k in range(servers)) + blocked)
    assert result.held.count / N == pytest.approx(erlang, rel=0.05)
    assert result.held.mean == pytest.approx(0.05 / (servers - load), rel=0.05)


def test_constant_times_on_several_servers_follow_lindley() -> None:
    """In M/D/c, first in first out, request n is served by the server of request n - c: Lindley's recursion on each."""
    servers, seconds = 4, 0.1
    trace = poisson(0.85 * servers / seconds, 20_000)
    engine = ExactEngine(scenario(Fixed(servers), concurrency=1), constant(seconds), trace, 0)
    engine.run()
    expected = np.empty(trace.requests)
    for first in range(servers):
        arrivals = trace.arrivals[first::servers]
        slack = np.concatenate(([0.0], np.cumsum(seconds - np.diff(arrivals))))
        expected[first::servers] = slack - np.minimum.accumulate(slack)
    assert np.allclose(np.frombuffer(engine.recording.held), expected, atol=1e-6)


def test_requests_that_share_a_replica_are_processor_sharing() -> None:
    """With latency in proportion to the requests in flight, M/G/1-PS has the mean of M/M/1 for any times."""
    shared = Profile(ServiceTimes(by_concurrency={1: (0.004, 0.016), 2: (0.02,), 64: (0.64,)}))
    result = simulate_exactly(scenario(), shared, poisson(60, 80_000))
    assert result.latency.mean == pytest.approx(0.01 / (1 - 0.6), rel=0.05)


def test_requests_to_a_service_at_zero_wait_for_its_start() -> None:
    result = simulate_exactly(scenario(kpa(window_s=6.0)), constant(0.01, cold_start=3.0), poisson(1 / 120, 200))
    assert result.cold_starts >= 150  # nearly every request comes after an idle window
    share = exp(-6 / 120)
    assert result.cold_requests / 200 == pytest.approx(share, abs=0.15)
    assert result.held.quantile(0.99) == pytest.approx(3.0, rel=0.01)
