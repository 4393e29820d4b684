"""Knative's own cases with its own numbers: the same load and the same replicas give the same count."""

import math
from dataclasses import replace

import pytest

from pilotlight.targets.local.scaling import kpa, types
from pilotlight.targets.local.scaling.kpa import KpaState, Load, Phase
from pilotlight.targets.local.scaling.types import Kpa, Observed, Sample


def rules(target: float, burst: float, **more: object) -> Kpa:
    """One replica may have target / 0.75 and is aimed at target: 75 % of it."""
    plain = Kpa(target=target / 0.75, utilization=0.75, burst_capacity=burst, max_up_rate=10, max_down_rate=10)
    return replace(plain, **more)  # type: ignore[arg-type]


def excess(target: float, burst: float, observed: float, ready: int) -> float:
    return math.floor(target / 0.75 * ready - burst - observed)


SCALES = [
    # name, rules, stable, panic, ready, reachable, wanted, excess
    ("nothing asked", rules(10, 100), 0, 0, 1, True, 0, excess(10, 100, 0, 1)),
    ("burst without end", rules(181, -1), 21, 26, 1, True, 1, -1),
    ("no burst", rules(10, 0), 50, 49, 1, True, 5, 0),
    ("stable", rules(10, 100), 50, 50, 1, True, 5, excess(10, 100, 50, 1)),
    ("already there", rules(10, 100), 50, 50, 5, True, 5, excess(10, 100, 50, 5)),
    ("stable above panic", rules(10, 101), 50, 10, 1, True, 5, excess(10, 101, 10, 1)),
    ("stable far above panic", rules(10, 101), 100, 10, 1, True, 10, excess(10, 101, 10, 1)),
    ("by requests per second", rules(10, 101, metric="rps"), 50, 50, 1, True, 5, excess(10, 101, 50, 1)),
    ("a slow way up still moves", rules(1, 1982, max_up_rate=1.1), 3, 3.1, 2, True, 3, excess(1, 1982, 3.1, 2)),
    ("a slow way down", rules(10, 1982, max_down_rate=1.1), 1, 1, 100, True, 90, excess(10, 1982, 1, 100)),
    ("unreachable goes at once", rules(10, 1982, max_down_rate=1.1), 1, 1, 100, False, 1, excess(10, 1982, 1, 100)),
    ("panic doubles", rules(10, 84), 50, 100, 1, True, 10, excess(10, 84, 100, 1)),
    ("at most ten times up", rules(10, 61), 1000, 1001, 1, True, 10, excess(10, 61, 1001, 1)),
    ("ten times up again", rules(10, 61), 1000, 1001, 10, True, 100, excess(10, 61, 1001, 10)),
    ("at most a tenth down", rules(10, 61), 1, 1, 100, True, 10, excess(10, 61, 1, 100)),
    ("a tenth down again", rules(10, 61), 1, 1, 10, True, 1, excess(10, 61, 1, 10)),
    ("none ready counts as one", rules(10, 81), 1000, 888, 0, True, 10, excess(10, 81, 888, 0)),
    ("to zero", rules(10, 75), 0, 0, 1, True, 0, excess(10, 75, 0, 1)),
    ("activation scale at nothing", rules(10, 75, activation_scale=2), 0, 0, 1, True, 0, excess(10, 75, 0, 1)),
    ("activation scale", rules(10, 75, activation_scale=2), 1, 0, 1, True, 2, excess(10, 75, 0, 1)),
]


@pytest.mark.parametrize("row", SCALES, ids=[row[0] for row in SCALES])
def test_a_load_gives_the_count_and_the_burst_capacity_that_knative_gives(row: tuple) -> None:
    _, given, stable, panic, ready, reachable, wanted, capacity = row
    found = kpa.recommend(given, Load(stable, panic), ready, reachable, KpaState(), 1000.0)
    assert found.desired == wanted
    assert found.excess == pytest.approx(capacity, abs=1)


@pytest.mark.parametrize(("stable", "panic", "wanted"), [(50, 30, 50), (20, 30, 30)])
def test_in_panic_the_larger_of_both_windows_counts(stable: float, panic: float, wanted: int) -> None:
    found = kpa.recommend(rules(1, 100), Load(stable, panic), 5, True, KpaState(995.0, 5), 1000.0)
    assert (found.desired, found.rule) == (wanted, "panic")


def test_panic_holds_the_count_until_a_stable_window_has_passed() -> None:
    given = rules(10, 93)
    found = kpa.recommend(given, Load(100, 100), 1, True, KpaState(), 0.0)
    assert found.desired == 10
    found = kpa.recommend(given, Load(100, 1000), 10, True, found.state, 0.0)
    assert found.desired == 100
    found = kpa.recommend(given, Load(1, 1), 10, True, found.state, 30.0)
    assert found.desired == 100
    assert "no scale-down in panic mode" in found.reason
    assert kpa.recommend(given, Load(1, 1), 10, True, found.state, 61.0).desired == 1


def test_panic_ends_after_a_slow_increase() -> None:
    given = rules(1, 98)
    first = kpa.recommend(given, Load(11, 25), 10, True, KpaState(), 0.0)
    second = kpa.recommend(given, Load(30, 41), 40, True, first.state, 30.0)
    third = kpa.recommend(given, Load(50, 56), 55, True, second.state, 62.0)
    assert (first.desired, second.desired, third.desired) == (25, 41, 50)
    assert (first.state.panic_since, second.state.panic_since, third.state.panic_since) == (0.0, 0.0, None)


def test_panic_goes_on_while_the_load_surges() -> None:
    given = rules(1, 98)
    first = kpa.recommend(given, Load(11, 25), 10, True, KpaState(), 0.0)
    second = kpa.recommend(given, Load(30, 80), 40, True, first.state, 30.0)
    assert (first.desired, second.desired, second.state.panic_since) == (25, 80, 30.0)


@pytest.mark.parametrize(("ready", "since"), [(0, None), (1, None), (2, 7.0)])
def test_several_replicas_of_an_unknown_past_are_kept_as_in_panic(ready: int, since: float | None) -> None:
    assert kpa.initial_state(ready, 7.0) == KpaState(since, ready)


DELAYED = Kpa(
    target=10, utilization=1, max_up_rate=10, max_down_rate=10, panic_threshold_percent=10000, scale_down_delay_s=300
)


@pytest.mark.parametrize(
    "steps",
    [
        [(2, 40, 4), (300, 0, 4), (302, 0, 0)],
        [(540, 40, 4), (600, 30, 4), (660, 0, 4), (840, 0, 3), (900, 0, 0)],
    ],
    ids=["simple", "gradual"],
)
def test_a_step_down_waits_for_the_delay(steps: list[tuple[int, int, int]]) -> None:
    recall, counts = KpaState(), []
    for at, load, _ in steps:
        found = kpa.recommend(DELAYED, Load(load, load), 0, True, recall, float(at))
        recall = found.state
        counts.append(found.desired)
    assert counts == [wanted for _, _, wanted in steps]


def test_an_unreachable_revision_does_not_wait_for_the_delay() -> None:
    first = kpa.recommend(DELAYED, Load(40, 40), 0, True, KpaState(), 2.0)
    assert kpa.recommend(DELAYED, Load(0, 0), 0, False, first.state, 60.0).desired == 0


def test_without_a_delay_the_next_moment_counts() -> None:
    given = replace(DELAYED, scale_down_delay_s=0)
    first = kpa.recommend(given, Load(40, 40), 0, True, KpaState(), 0.0)
    assert (first.desired, kpa.recommend(given, Load(20, 20), 0, True, first.state, 0.5).desired) == (4, 2)


TARGETS = [
    (Kpa(utilization=1), 100, 100),
    (Kpa(utilization=0.8), 80, 100),
    (Kpa(target=2, utilization=0.3), 0.6, 2),
    (Kpa(target=12, container_concurrency=12, utilization=0.75), 9, 12),
    (Kpa(target=1, utilization=0.001), 0.01, 1),
    (Kpa(target=10, utilization=0.75), 7.5, 10),
    (Kpa(target=1, container_concurrency=10, utilization=1), 1, 1),
    (Kpa(target=10, container_concurrency=1, utilization=1), 1, 1),
    (Kpa(metric="rps", target=200, container_concurrency=1), 140, 200),
]


@pytest.mark.parametrize(("given", "target", "total"), TARGETS)
def test_the_target_is_the_smaller_of_target_and_concurrency_times_utilisation(
    given: Kpa, target: float, total: float
) -> None:
    assert (kpa.target(given), kpa.capacity(given)) == (pytest.approx(target), total)


NOW = 10_000.0
GRACE = 60.0  # Knative's tests use a minute, and a stable window of a minute
ZERO = Kpa(grace_s=GRACE, progress_s=120)
VERDICTS = [
    # name, rules, wanted, replicas, state, for how long, held for, more of what is seen, verdict
    ("just before the window", ZERO, 0, 1, "active", 59, 0, {}, 1),
    ("a shorter window, just before", replace(ZERO, window_s=36), 0, 1, "active", 35, 0, {}, 1),
    ("a shorter window, after", replace(ZERO, window_s=36), 0, 1, "active", 60, 0, {}, None),
    ("to one while the window runs", ZERO, 0, 10, "active", 59, 0, {}, 1),
    ("after the window", ZERO, 0, 1, "active", 60, 0, {}, None),
    ("after grace, no retention", ZERO, 0, 1, "inactive", 60, 0, {}, 0),
    ("after grace, before retention", replace(ZERO, retention_s=120), 0, 1, "inactive", 60, 0, {}, None),
    ("after grace and retention", replace(ZERO, retention_s=60), 0, 1, "inactive", 60, 0, {}, 0),
    ("just before grace", ZERO, 0, 1, "inactive", 59, 0, {}, None),
    ("just before grace, held shortly", ZERO, 0, 1, "inactive", 59, 59, {}, None),
    ("before grace, held long", ZERO, 0, 1, "inactive", 59, 60, {}, 0),
    ("before grace, held long, retention over", replace(ZERO, retention_s=42), 0, 1, "inactive", 59, 60, {}, 0),
    ("activating, before the deadline", ZERO, 0, 1, "activating", 75, 0, {}, None),
    ("activating, after the deadline", ZERO, 0, 1, "activating", 151, 0, {}, 0),
    ("activating, after a deadline of its own", replace(ZERO, progress_s=5), 0, 1, "activating", 36, 0, {}, 0),
    ("minimum before grace", replace(ZERO, min_scale=2), 0, 10, "inactive", 59, 0, {}, 2),
    ("minimum after grace", replace(ZERO, min_scale=2), 0, 10, "inactive", 60, 0, {}, 2),
    ("unreachable has no retention", replace(ZERO, retention_s=600), 0, 1, "inactive", 60, 0, {"reachable": False}, 0),
    ("unreachable waits too", replace(ZERO, retention_s=600), 0, 1, "inactive", 59, 0, {"reachable": False}, None),
    ("unreachable has no minimum", replace(ZERO, min_scale=2), 0, 10, "inactive", 60, 0, {"reachable": False}, 0),
    ("up", ZERO, 10, 1, "active", 1, 0, {}, 10),
    ("up to the maximum", replace(ZERO, max_scale=8), 10, 1, "active", 1, 0, {}, 8),
    ("up from inactive", ZERO, 10, 1, "inactive", 30, 0, {}, 10),
    ("from zero to one", ZERO, 1, 0, "inactive", 30, 0, {}, 1),
    ("from zero to many", ZERO, 10, 0, "inactive", 30, 0, {}, 10),
    ("initial scale not reached", replace(ZERO, initial_scale=2), 1, 0, "activating", 0, 0, {}, 2),
    ("initial scale of five", replace(ZERO, initial_scale=5), 1, 5, "activating", 0, 0, {}, 5),
    ("unreachable, initial scale", replace(ZERO, initial_scale=2), 0, 2, "active", 30, 0, {"reachable": False}, 1),
]  # fmt: skip


@pytest.mark.parametrize("row", VERDICTS, ids=[row[0] for row in VERDICTS])
def test_the_last_word_on_a_count_is_knatives(row: tuple) -> None:
    _, given, wanted, replicas, state, passed, held, more, desired = row
    observed = Observed(replicas, replicas, **more)
    phase = Phase(state, NOW - passed, "initial_scale" not in row[0] and given.initial_scale == 1, NOW - held)
    assert kpa.scale(given, wanted, observed, phase, NOW).desired == desired


STATES = [
    # want, ready, least, before, after: Knative's table of the Active condition
    (0, 5, 1, "active", "inactive"),
    (3, 0, 1, "inactive", "activating"),
    (3, 1, 1, "activating", "active"),
    (-1, 0, 1, "inactive", "inactive"),
    (-1, 0, 1, "activating", "activating"),
    (-1, 0, 1, "active", "activating"),
    (-1, 1, 1, "inactive", "inactive"),
    (-1, 0, 0, "activating", "inactive"),
    (-1, 1, 1, "activating", "active"),
    (-1, 1, 1, "active", "active"),
]


@pytest.mark.parametrize(("want", "ready", "least", "before", "after"), STATES)
def test_a_revision_becomes_active_as_knative_says(
    want: int, ready: int, least: int, before: kpa.State, after: str
) -> None:
    initial = Kpa(initial_scale=least)
    found = kpa.next_phase(initial, want, 0, Observed(ready, ready), Phase(before, 0.0), 5.0)
    assert found.state == after
    assert found.since == (0.0 if after == before else 5.0)


def averaged(values: dict[int, float], now: float, window: float, *, weighted: bool = False) -> float:
    samples = [Sample(float(at), value, value) for at, value in values.items()]
    load = types.buckets(Observed(1, 1, samples), "concurrency", window, now)
    return types.average(load, None, window, now, weighted)


def test_a_window_that_is_not_full_yet_is_averaged_over_what_it_has() -> None:
    assert averaged({100: 2, 101: 4}, 101, 60) == 3
    assert averaged({100: 1, 101: 2, 102: 3, 103: 4, 104: 5, 105: 6}, 105, 5) == 4


def test_a_gap_within_a_window_counts_as_nothing() -> None:
    assert averaged({100: 8, 103: 4}, 103, 60) == 3


def test_after_a_window_of_silence_the_next_sample_begins_anew() -> None:
    assert averaged({100: 8, 160: 4}, 160, 60) == 4
    assert averaged({100: 8, 159: 4}, 159, 60) == 0.2


def test_silence_longer_than_a_report_takes_counts_as_nothing() -> None:
    assert averaged({100: 6}, 102, 60) == 6
    assert averaged({100: 6}, 106, 60) == 1
    assert averaged({100: 6}, 160, 60) == 0


def test_newer_seconds_weigh_more_in_a_weighted_window() -> None:
    assert round(averaged({i: i + 1.0 for i in range(6)}, 5, 5, weighted=True), 3) == 5.812
    decay = 1 - math.pow(1e-4, 1 / 5)
    assert averaged({0: 2.0}, 0, 5, weighted=True) == pytest.approx(2 * decay)
    assert averaged({0: 2.0}, 1, 5, weighted=True) == pytest.approx(2 * decay * (1 - decay))
