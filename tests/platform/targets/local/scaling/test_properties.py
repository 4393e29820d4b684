"""What holds for every load, every count and every clock."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.targets.local.scaling.decision import KpaDecisionState, decide
from pilotlight.targets.local.scaling.from_manifests import DEFAULT_DOWN, DEFAULT_UP
from pilotlight.targets.local.scaling.types import Hpa, Kpa, Metric, Observed, Sample

SHARED = Metric("queue", "prometheus", "AverageValue", 10)
LEVEL = Metric("queue", "prometheus", "Value", 10)
loads = st.lists(st.floats(0, 500), min_size=1, max_size=90)
counts = st.integers(0, 12)


def samples(values: list[float], end: float) -> list[Sample]:
    return [Sample(end - len(values) + 1 + n, value, value) for n, value in enumerate(values)]


def lived(rules: Kpa, values: list[float], ready: int) -> tuple[KpaDecisionState | None, float]:
    state, now = None, 1000.0
    for n in range(len(values)):
        now = 1000.0 + n
        seen = Observed(ready, ready, samples(values[: n + 1], now))
        state = decide(rules, seen, state, now).state
    return state, now


@settings(deadline=None, max_examples=60)
@given(loads, counts, st.integers(0, 3), st.integers(3, 9))
def test_a_count_is_within_its_bounds(values: list[float], ready: int, low: int, high: int) -> None:
    rules = Kpa(target=5, min_scale=low, max_scale=high)
    state, now = lived(rules, values, ready)
    found = decide(rules, Observed(ready, ready, samples(values, now + 1), in_flight=1), state, now + 1)
    assert low <= found.desired <= high


@settings(deadline=None, max_examples=60)
@given(loads, counts, st.floats(1, 300))
def test_more_load_never_means_fewer_replicas(values: list[float], ready: int, more: float) -> None:
    rules = Kpa(target=5)
    state, now = lived(rules, values, ready)
    less, extra = (
        decide(rules, Observed(ready, ready, [*samples(values, now), Sample(now + 1, load, load)]), state, now + 1)
        for load in (values[-1], values[-1] + more)
    )
    assert extra.desired >= less.desired


@settings(deadline=None, max_examples=60)
@given(loads, st.integers(1, 12), st.floats(0, 500))
def test_nothing_is_taken_away_in_panic(values: list[float], ready: int, load: float) -> None:
    rules = Kpa(target=5)
    state, now = lived(rules, values, ready)
    assert state is not None
    held = state.autoscaler.panic_replicas
    seen = Observed(ready, ready, [*samples(values, now), Sample(now + 1, load, load)])
    found = decide(rules, seen, state, now + 1)
    if state.autoscaler.panic_since is not None and found.state.autoscaler.panic_since is not None:
        assert found.desired >= held


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([SHARED, LEVEL]), st.floats(0, 900), st.integers(1, 40), st.integers(0, 4), st.integers(4, 30))
def test_keda_stays_within_its_bounds(metric: Metric, value: float, replicas: int, low: int, high: int) -> None:
    rules = Hpa(low, high, (metric,), DEFAULT_UP, DEFAULT_DOWN, keda=True)
    seen = Observed(replicas, replicas, metrics={"queue": value})
    assert low <= decide(rules, seen, None, 1000.0).desired <= max(high, 1)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([SHARED, LEVEL]), st.floats(0, 900), st.floats(0, 900), st.integers(1, 40))
def test_a_higher_metric_never_means_fewer_replicas(metric: Metric, value: float, more: float, replicas: int) -> None:
    rules = Hpa(1, 50, (metric,), DEFAULT_UP, replace(DEFAULT_DOWN, window_s=0), keda=True)
    less, extra = (
        decide(rules, Observed(replicas, replicas, metrics={"queue": found}), None, 1000.0).desired
        for found in (value, value + more)
    )
    assert extra >= less
