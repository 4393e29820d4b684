"""Triggers of language models, by the queries that a plan renders: tokens in the queue, KV cache, first token."""

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace
from tests.platform.simulation.scenarios import scenario

from pilotlight.prometheus.metric_queries import MEASURES, Kind, guarded, metric_query
from pilotlight.simulation.exact import ExactEngine, simulate_exactly
from pilotlight.simulation.service_times import LlmRates, Profile, ServiceTimes
from pilotlight.simulation.simulate import simulate
from pilotlight.simulation.trace import Trace
from pilotlight.simulation.trigger_metrics import SCRAPE_S
from pilotlight.targets.local.scaling.types import Hpa, Metric, Policy, ScalingRules

RATES = LlmRates(1000.0, {1: 50.0, 8: 200.0}, kv_cache_tokens=2000)
QUICK = ScalingRules((Policy("Percent", 100, 1),), "Max", 0.0)


def profile(rates: LlmRates) -> Profile:
    return Profile(ServiceTimes(llm=rates)).with_cold_start("process", 5.0)


def rules(kind: Kind, target: float) -> Hpa:
    query = metric_query(kind, "iris", "default")
    query = guarded(query, MEASURES[kind], "iris", "default", from_zero=False, has_request_rate=False)
    measured = "Value" if MEASURES[kind] == "level" else "AverageValue"
    trigger = Metric(kind, "prometheus", measured, target, query=query, ignore_null=False)
    return Hpa(1, 4, (trigger,), QUICK, QUICK, keda=True, polling_s=5.0, cooldown_s=30.0)


def prompts(every: float, tokens: int = 500, answer: int = 20, seconds: float = 120.0) -> Trace:
    arrivals = np.arange(0, seconds, every)
    return Trace(arrivals, None, np.full(arrivals.size, tokens), np.full(arrivals.size, answer), duration=seconds)


@pytest.mark.parametrize(("kind", "target"), [("tokens-in-queue", 2000), ("time-to-first-token", 2.0)])
def test_more_prompts_than_a_replica_reads_start_others(kind: Kind, target: float) -> None:
    """A replica reads two prompts of 500 tokens in a second, but for the time that four answers take."""
    rates = profile(replace(RATES, kv_cache_tokens=0, max_batch=4))
    crowded, quiet = (simulate_exactly(scenario(rules(kind, target)), rates, prompts(every)) for every in (0.4, 2.0))
    assert crowded.max_replicas >= 2
    assert quiet.max_replicas == 1


def test_a_full_kv_cache_starts_replicas() -> None:
    """An answer of 480 tokens holds half of the cache on average while it is written, for ten seconds and more."""
    full, free = (
        simulate_exactly(
            scenario(rules("kv-cache", 60.0)), profile(replace(RATES, kv_cache_tokens=size)), prompts(4.0, 400, 480)
        )
        for size in (2000, 40_000)
    )
    assert full.max_replicas >= 2
    assert free.max_replicas == 1


def test_the_load_is_what_waits_and_what_the_cache_holds() -> None:
    """One prompt is read for 0.5 s, then 20 tokens are written, 50 a second; the second prompt begins after it."""
    engine = ExactEngine(scenario(rules("kv-cache", 60.0)), profile(RATES), prompts(0.01, seconds=0.02), 0)
    loads = []
    engine.metrics._llm = lambda now: loads.append((now, engine._llm_load(now))) or loads[-1][1]
    engine.run()
    (first, load), *_ = loads
    assert (first, load.tokens_waiting) == (1.0, 500)  # the second is read
    assert load.cache == pytest.approx((501 + 500) / 2000)  # a prefill interrupts the answer before it
    assert all(now - before == pytest.approx(SCRAPE_S) for (before, _), (now, _) in pairwise(loads))


@pytest.mark.parametrize("kind", ["tokens-in-queue", "kv-cache", "time-to-first-token"])
def test_a_trigger_whose_metric_is_not_known_is_named(kind: Kind) -> None:
    simulated, trace = scenario(rules(kind, 10.0)), prompts(5.0)
    [note] = [each for each in simulate(simulated, Profile(), trace).assumptions if kind in each]
    assert "give --profile with the rates of a language model" in note
    unbounded = simulate(simulated, profile(replace(RATES, kv_cache_tokens=0)), trace).assumptions
    assert any("llm.kvCacheTokens" in each for each in unbounded) == (kind == "kv-cache")
    assert not any(kind in each for each in simulate(simulated, profile(RATES), trace).assumptions)


def test_a_query_beyond_the_evaluator_and_foreign_metrics_are_named() -> None:
    metrics = (
        Metric("queue", "prometheus", "Value", 1.0, query="sum(my_queue)"),
        Metric("text", "prometheus", "Value", 1.0, query='label_replace(up, "a", "b", "c", "d")'),
    )
    simulated = scenario(Hpa(1, 4, metrics, QUICK, QUICK, keda=True))
    notes = [each for each in simulate(simulated, Profile(), prompts(5.0)).assumptions if "trigger" in each]
    assert notes[0] == "trigger queue is not simulated: it reads my_queue"
    assert "trigger text is not simulated: the query label_replace" in notes[1]
