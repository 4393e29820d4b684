"""Whole canaries at 10 to 100 requests a check: bad ones are rolled back, equal ones are not."""

import math
from collections.abc import Callable

import pytest
from tests.platform.canaries.simulation import (  # fmt: skip
    BAD,
    BROKEN,
    FAILING,
    FAIR,
    GOOD,
    P99,
    SLOWER,
    Model,
    Outcome,
    Weather,
    outcomes,
    share,
)

from pilotlight.canaries.canary_state import Canary
from pilotlight.spec.canary_policy import Check

WITHIN = 60  # checks, of which the steps' bake alone takes 24


def explain(found: list[Outcome]) -> str:
    return "\n".join(f"{each.phase} after {each.checks}: {each.reason}" for each in found)


def test_a_bad_canary_is_rolled_back() -> None:
    found = outcomes(60, BAD)
    assert share(found, "RolledBack", WITHIN) >= 0.99, explain(found)


def test_an_equal_canary_is_promoted() -> None:
    found = outcomes(60, GOOD)
    assert share(found, "RolledBack") <= 0.01, explain(found)
    assert share(found, "Promoted") >= 0.95, explain(found)


def test_a_canary_that_answers_with_errors_only_is_rolled_back_at_the_second_check() -> None:
    found = outcomes(40, BROKEN, per_interval=400.0)
    assert share(found, "RolledBack", 2) == 1.0, explain(found)


@pytest.mark.parametrize("median", [0.004, 0.4, 3.0])
def test_it_does_not_matter_where_latencies_lie_among_the_edges(median: float) -> None:
    stable = Model(median)
    good, bad = outcomes(15, stable, stable), outcomes(15, Model(median * 1.5, errors=0.025), stable)
    assert share(good, "RolledBack") == 0.0, explain(good)
    assert share(bad, "Promoted") == 0.0, explain(bad)


def from_the_second_share(weather: Weather) -> Callable[[Canary, int], Weather]:
    return lambda canary, check: weather if canary.weight >= 25 else FAIR


def now_and_then(weather: Weather) -> Callable[[Canary, int], Weather]:
    """A minute of every two, whatever the share is then."""
    return lambda canary, check: weather if check % 8 in (3, 4, 5, 6) else FAIR


STORMS = [Weather(slower=2.0), Weather(errors=0.1), Weather(slower=3.0, errors=0.05)]


@pytest.mark.parametrize("weather", STORMS, ids=str)
@pytest.mark.parametrize("when", [from_the_second_share, now_and_then])
def test_what_befalls_both_sides_is_not_the_canarys_fault(
    weather: Weather, when: Callable[[Weather], Callable[[Canary, int], Weather]]
) -> None:
    found = outcomes(12, GOOD, per_interval=1000.0, weather=when(weather))
    assert share(found, "RolledBack") == 0.0, explain(found)
    assert share(found, "Promoted") >= 0.9, explain(found)


def test_a_bad_canary_is_found_in_bad_weather_too() -> None:
    found = outcomes(12, BAD, per_interval=1000.0, weather=now_and_then(Weather(slower=2.0, errors=0.02)))
    assert share(found, "RolledBack", WITHIN) == 1.0, explain(found)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("when", [from_the_second_share, now_and_then])
def test_of_a_thousand_equal_canaries_in_bad_weather_no_more_than_ten_are_rolled_back(
    when: Callable[[Weather], Callable[[Canary, int], Weather]],
) -> None:
    found = outcomes(1000, GOOD, per_interval=400.0, weather=when(Weather(slower=2.0, errors=0.05)))
    assert share(found, "RolledBack") <= 0.01


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("per_interval", [200.0, 400.0])
def test_of_a_thousand_equal_canaries_no_more_than_ten_are_rolled_back(per_interval: float) -> None:
    found = outcomes(1000, GOOD, per_interval=per_interval)
    assert share(found, "RolledBack") <= 0.01


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_bound_on_false_rollbacks_needs_no_slack() -> None:
    """With a ratio of 1 an equal canary is just where it must not be worse than."""
    assert share(outcomes(1000, GOOD, ratio=1.0), "RolledBack") <= 0.01


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", [BAD, SLOWER])
def test_of_a_thousand_bad_canaries_990_are_rolled_back(model: Model) -> None:
    found = outcomes(1000, model)
    assert share(found, "RolledBack", WITHIN) >= 0.99


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("per_interval", "least"), [(200.0, 0.95), (400.0, 0.99)])
def test_errors_alone_take_more_requests_to_prove(per_interval: float, least: float) -> None:
    found = outcomes(500, FAILING, per_interval=per_interval)
    assert share(found, "RolledBack", 150) >= least


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_small_shares_hint_at_helps_to_prove_errors_at_the_next() -> None:
    """5, 25 and 50 requests a check. Each share by itself, without those before it, proves them in 73 of 100."""
    found = outcomes(250, FAILING, per_interval=100.0)
    assert share(found, "RolledBack") >= 0.82
    assert share(found, "Promoted") <= 0.1


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ratio", [1.0, 1.2])
def test_what_small_shares_hint_at_wrongs_no_equal_canary(ratio: float) -> None:
    assert share(outcomes(1000, GOOD, per_interval=100.0, ratio=ratio), "RolledBack") <= 0.01


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_bounds_that_hold_are_not_broken_by_chance() -> None:
    """Just at their bounds, and looked at again and again."""
    checks = (Check("p99_ms", maximum=250.0), Check("error_rate", maximum=GOOD.errors))
    just_there = Model(0.25 / math.exp(P99 * GOOD.spread))
    found = outcomes(500, just_there, compare="", checks=checks, deadline_s=1e9)
    assert share(found, "RolledBack") <= 0.01
