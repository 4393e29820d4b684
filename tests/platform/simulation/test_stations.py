"""Replicas that batch, share and decode: what their requests take, against the predictor's rules and given rates."""

import numpy as np
import pytest
from msgspec.structs import replace
from tests.platform.simulation.scenarios import poisson, scenario

from pilotlight.simulation.approximation.engine import simulate_approximately
from pilotlight.simulation.exact import ExactEngine, simulate_exactly
from pilotlight.simulation.service_times import LlmRates, Profile, ServiceTimes
from pilotlight.simulation.trace import Trace
from pilotlight_predictor.scheduling.batching import BatchPolicy, next_batch

RATES = LlmRates(1000.0, {1: 50.0, 8: 200.0}, kv_cache_tokens=1000)


def times(by_batch: dict[int, tuple[float, ...]], **fields: float) -> Profile:
    return Profile(ServiceTimes(by_batch=by_batch, **fields))  # type: ignore[arg-type]


def served(profile: Profile, trace: Trace, **fields: float) -> np.ndarray:
    engine = ExactEngine(scenario(**fields), profile, trace, 0)
    engine.run()
    order = np.argsort(np.frombuffer(engine.recording.arrived), kind="stable")
    return np.frombuffer(engine.recording.latency)[order]


def test_requests_that_wait_form_the_next_batch() -> None:
    latency = served(times({1: (0.1,), 4: (0.2,)}), Trace(np.array([0.0, 0.01, 0.02, 0.03])))
    assert latency.tolist() == pytest.approx([0.1, 0.09 + 0.5 / 3, 0.08 + 0.5 / 3, 0.07 + 0.5 / 3])


def test_a_batch_waits_for_more_requests_as_long_as_the_predictor_would() -> None:
    profile = times({1: (0.1,), 4: (0.2,)}, batch_delay=0.05)
    alone = served(profile, Trace(np.array([0.0])))
    assert alone.tolist() == pytest.approx([0.15], abs=1e-6)
    assert next_batch([], BatchPolicy(4, delay_ns=1), 0).take == 0
    full = served(profile, Trace(np.array([0.0, 0.01, 0.02, 0.03])))
    assert full.tolist() == pytest.approx([0.23, 0.22, 0.21, 0.2], abs=1e-6)


def test_batches_serve_what_single_requests_could_not() -> None:
    trace = poisson(30, 3000)
    batched = simulate_exactly(scenario(), times({1: (0.1,), 8: (0.15,)}), trace)
    assert batched.latency.quantile(0.95) < 1
    single = simulate_exactly(scenario(), Profile(ServiceTimes((0.1,))), trace)
    assert single.latency.quantile(0.5) > 10


def llm(arrivals: list[float], asked: list[int], answered: list[int]) -> Trace:
    return Trace(np.array(arrivals), None, np.array(asked), np.array(answered))


def test_a_single_answer_takes_its_prefill_and_its_tokens() -> None:
    result = simulate_exactly(scenario(), Profile(ServiceTimes(llm=RATES)), llm([0.0], [100], [101]))
    assert result.latency.mean == pytest.approx(0.1 + 100 / 50)
    assert result.figure("ttft_p50") == pytest.approx(0.1)


def test_answers_together_share_the_rate_of_their_number() -> None:
    quick, slow = served(Profile(ServiceTimes(llm=RATES)), llm([0.0, 1e-9], [0, 0], [51, 101]))
    each = (50 + (200 - 50) / 7) / 2  # tokens per second of one of two
    assert quick == pytest.approx(50 / each)
    assert slow == pytest.approx(50 / each + 50 / 50)


def test_a_prefill_interrupts_the_answers_that_are_written() -> None:
    first, _ = served(Profile(ServiceTimes(llm=RATES)), llm([0.0, 1.0], [0, 500], [101, 1]))
    assert first == pytest.approx(100 / 50 + 0.5)


def test_a_request_waits_for_space_in_the_kv_cache() -> None:
    first, second = served(Profile(ServiceTimes(llm=RATES)), llm([0.0, 0.1], [300, 300], [400, 50]))
    assert second == pytest.approx(first - 0.1 + 0.3 + 49 / 50)
    profile = Profile(ServiceTimes(llm=replace(RATES, kv_cache_tokens=0)))
    assert served(profile, llm([0.0, 0.1], [300, 300], [400, 50]))[1] < first


def test_a_request_larger_than_the_kv_cache_fails() -> None:
    result = simulate_exactly(scenario(), Profile(ServiceTimes(llm=RATES)), llm([0.0], [900], [200]))
    assert result.failures == {"unavailable": 1}


@pytest.mark.parametrize(
    "profile",
    [
        Profile(ServiceTimes(by_concurrency={1: (0.02,), 8: (0.05,), 32: (0.2,)})),
        times({1: (0.03,), 8: (0.06,)}),
        Profile(ServiceTimes(llm=LlmRates(20_000.0, {1: 100.0, 16: 800.0}))),
    ],
    ids=["shared", "batches", "llm"],
)
def test_the_approximation_knows_replicas_that_share(profile: Profile) -> None:
    """It has means by concurrency instead of each batch and token, so it is coarser than for single requests."""
    size = 6000
    trace = poisson(20, size, 1)
    tokens = Trace(trace.arrivals, None, np.full(size, 100), np.full(size, 20))
    arrivals = tokens if profile.service_times.llm else trace
    exact, approximate = (run(scenario(), profile, arrivals) for run in (simulate_exactly, simulate_approximately))
    assert approximate.latency.mean == pytest.approx(exact.latency.mean, rel=0.25)
    assert approximate.latency.quantile(0.99) == pytest.approx(exact.latency.quantile(0.99), rel=0.35)
