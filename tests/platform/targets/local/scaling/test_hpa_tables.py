"""The cases of Kubernetes' own controller with its own numbers: policies, windows and metrics."""

from dataclasses import replace

import pytest

from pilotlight.targets.local.scaling import hpa
from pilotlight.targets.local.scaling.from_manifests import DEFAULT_DOWN, DEFAULT_UP
from pilotlight.targets.local.scaling.hpa import History
from pilotlight.targets.local.scaling.types import Hpa, Metric, Observed, Policy, ScalingRules

NOW = 1000.0
CPU = Metric("cpu", "cpu", "Utilization", 50)


def policies(pods: int, pods_s: int, percent: int, percent_s: int) -> tuple[Policy, ...]:
    found = (Policy("Pods", pods, pods_s) if pods else None, Policy("Percent", percent, percent_s) if percent else None)
    return tuple(policy for policy in found if policy)


def spread(changes: list[int], period: int) -> tuple[tuple[float, int], ...]:
    """Steps in the middle of equal parts of the period."""
    part = period / len(changes)
    return tuple((NOW - int(period - part * (i + 1) + part / 2), change) for i, change in enumerate(changes))


def hpa_rules(low: int, high: int, up: ScalingRules = DEFAULT_UP, down: ScalingRules = DEFAULT_DOWN) -> Hpa:
    return Hpa(low, high, (CPU,), up, down)


UP, DOWN = [1, 5, 9], [1, 5, 9]
LIMITS = [
    # name, current, wanted, min, max, up policies, down policies, steps up, steps down, allowed
    ("within range", 5, 7, 3, 8, None, None, [], [], 7),
    ("below the minimum", 3, 1, 2, 8, None, None, [], [], 2),
    ("zero where it is the minimum", 1, 0, 0, 10, None, None, [], [], 0),
    ("the maximum is lower than the policy", 20, 1000, 1, 10, None, None, [], [], 10),
    ("above the maximum", 100, 1000, 100, 150, None, None, [], [], 150),
    ("one percent more is one pod", 3, 1000, 1, 2000, (0, 0, 1, 60), None, [], [], 4),
    ("twenty fewer", 1000, 3, 3, 2000, None, (20, 60, 0, 0), [], [], 980),
    ("double by default", 10, 50, 1, 1000, None, None, [], [], 20),
    ("pods allow more than percent", 10, 500, 1, 1000, (100, 60, 100, 60), None, [], [], 110),
    ("percent allows more than pods", 10, 500, 1, 1000, (2, 60, 100, 60), None, [], [], 20),
    ("a large pods policy", 10, 50, 1, 1000, (100, 60, 0, 0), None, [], [], 50),
    ("pods limit", 10, 50, 1, 1000, (30, 60, 0, 0), None, [], [], 40),
    ("percent limits", 10, 50, 1, 1000, (0, 0, 200, 60), None, [], [], 30),
    ("down: pods allow more", 100, 2, 1, 1000, None, (20, 60, 1, 60), [], [], 80),
    ("down: two pods beat one percent", 100, 2, 1, 1000, None, (2, 60, 1, 60), [], [], 98),
    ("down to the minimum", 10, 0, 1, 1000, None, (100, 60, 0, 0), [], [], 1),
    ("down to a minimum of five", 10, 2, 5, 1000, None, (0, 0, 100, 60), [], [], 5),
    ("down by five", 10, 2, 1, 1000, None, (5, 60, 0, 0), [], [], 5),
    ("down by half", 10, 5, 1, 1000, None, (0, 0, 50, 60), [], [], 5),
    ("earlier steps, up to the maximum", 100, 500, 1, 200, (300, 60, 0, 0), None, UP, [], 200),
    ("earlier steps leave nothing", 100, 500, 1, 1000, (5, 120, 0, 0), None, UP, [], 100),
    ("earlier steps and pods", 100, 500, 1, 1000, (150, 120, 0, 0), None, UP, [], 235),
    ("earlier steps and percent", 100, 500, 1, 1000, (0, 0, 200, 120), None, UP, [], 255),
    ("earlier steps down, by default", 10, 5, 1, 1000, None, None, [], DOWN, 5),
    ("earlier steps down to the minimum", 100, 0, 1, 1000, None, (115, 120, 0, 0), [], DOWN, 1),
    ("earlier steps down leave nothing", 100, 2, 1, 1000, None, (5, 120, 0, 0), [], DOWN, 100),
    ("earlier steps down and half", 100, 0, 1, 1000, None, (0, 0, 50, 120), [], [2, 4, 6], 56),
    ("earlier steps down prevent more", 100, 0, 1, 1000, None, (0, 0, 10, 120), [], [10, 10, 10], 100),
    ("earlier steps down allow more", 10, 5, 1, 1000, None, (0, 0, 1000, 120), [], [10, 10, 10], 5),
    ("two periods", 100, 200, 1, 1000, (1000, 30, 100, 60), None, [8, 12, 9, 11], [], 200),
]


@pytest.mark.parametrize("row", LIMITS, ids=[row[0] for row in LIMITS])
def test_policies_allow_what_kubernetes_allows(row: tuple) -> None:
    _, current, wanted, low, high, up, down, steps_up, steps_down, allowed = row
    rules = hpa_rules(
        low, high,
        ScalingRules(policies(*up)) if up else DEFAULT_UP,
        ScalingRules(policies(*down), window_s=300) if down else DEFAULT_DOWN,
    )  # fmt: skip
    history = History(
        ups=spread(steps_up, 120) if steps_up else (), downs=spread(steps_down, 120) if steps_down else ()
    )
    assert hpa.limit_rate(rules, history, wanted, current, NOW)[0] == allowed


@pytest.mark.parametrize(
    ("select", "up", "down"), [("Max", 20, 90), ("Min", 12, 98), ("Disabled", 10, 100)], ids=["Max", "Min", "Disabled"]
)
def test_a_policy_is_selected(select: str, up: int, down: int) -> None:
    both = ScalingRules(policies(2, 60, 100, 60), select)  # type: ignore[arg-type]
    slower = ScalingRules(policies(2, 60, 10, 60), select)  # type: ignore[arg-type]
    rules = hpa_rules(1, 1000, both, slower)
    assert hpa.limit_rate(rules, History(), 500, 10, NOW)[0] == up
    assert hpa.limit_rate(rules, History(), 1, 100, NOW)[0] == down


WINDOWS = [
    # name, (count, minutes ago) …, current, wanted, up window, down window, steady
    ("nothing known", [], 100, 5, 0, 0, 5),
    ("down", [(4, 2), (5, 1)], 100, 3, 0, 180, 5),
    ("up", [(4, 2), (5, 1)], 1, 7, 300, 0, 4),
    ("down to what was wanted least", [(1, 2), (2, 1)], 100, 3, 300, 0, 3),
    ("up to what is wanted", [(4, 2), (5, 1)], 1, 3, 0, 300, 3),
    ("old wishes down", [(10, 10), (9, 9)], 100, 3, 0, 0, 3),
    ("old wishes up", [(10, 10), (9, 9)], 1, 100, 0, 0, 100),
    ("old and new wishes down", [(10, 10), (4, 1), (5, 2), (9, 9)], 100, 3, 0, 180, 5),
    ("old and new wishes up", [(10, 100), (6, 1), (5, 2), (9, 3)], 1, 100, 300, 0, 5),
]


@pytest.mark.parametrize("row", WINDOWS, ids=[row[0] for row in WINDOWS])
def test_windows_hold_what_kubernetes_holds(row: tuple) -> None:
    _, wishes, current, wanted, up, down, steady = row
    rules = hpa_rules(1, 1000, replace(DEFAULT_UP, window_s=up), replace(DEFAULT_DOWN, window_s=down))
    points = tuple((NOW - 60 * ago, count) for count, ago in wishes)
    assert hpa.stabilize(rules, History(points, points), wanted, current, NOW)[0] == steady


VALUE = Metric("latency", "prometheus", "Value", 0.5)
SHARED = Metric("requests", "requests", "AverageValue", 10)
PROPOSALS = [
    # metric, value, current, ready, count
    (VALUE, 0.9, 8, 8, 15),
    (VALUE, 0.55, 8, 8, 8),  # 10 % is within the tolerance
    (VALUE, 0.56, 8, 8, 9),
    (VALUE, 0.45, 8, 8, 8),
    (VALUE, 0.44, 8, 8, 8),  # ceil(7.04)
    (VALUE, 0.2, 8, 8, 4),
    (VALUE, 1.0, 8, 2, 4),  # replicas that start do not count
    (VALUE, 0.0, 3, 3, 0),
    (VALUE, 2.0, 0, 0, 4),
    (SHARED, 37.2, 1, 1, 4),
    (SHARED, 42.0, 4, 4, 4),
    (SHARED, 45.0, 4, 4, 5),
    (SHARED, 0.0, 4, 4, 0),
    (SHARED, 90.0, 8, 1, 9),  # a total has nothing to do with how many are ready
    (CPU, 100.0, 3, 3, 6),
    (CPU, 54.0, 3, 3, 3),
    (CPU, 20.0, 3, 3, 2),
    (CPU, 100.0, 4, 2, 4),  # two that start will take half of it
    (CPU, 300.0, 4, 2, 12),
    (CPU, 25.0, 4, 2, 1),
]


@pytest.mark.parametrize(("metric", "value", "current", "ready", "count"), PROPOSALS)
def test_a_metric_proposes_what_kubernetes_proposes(
    metric: Metric, value: float, current: int, ready: int, count: int
) -> None:
    assert hpa.propose(metric, value, current, ready, 0.1).count == count


def decided(values: dict[str, float | None], current: int, rules: Hpa) -> hpa.HpaResult:
    seen = Observed(current, current, metrics=values)
    return hpa.decide(rules, values, seen, current, hpa.initial_history(current, NOW - 1000), NOW)


def test_the_largest_proposal_wins() -> None:
    rules = Hpa(1, 20, (VALUE, SHARED), DEFAULT_UP, DEFAULT_DOWN)
    found = decided({"latency": 0.6, "requests": 70.0}, 4, rules)
    assert (found.desired, found.reason) == (7, "7: requests 70, target 10 per replica")


def test_a_missing_metric_does_not_stop_a_step_up() -> None:
    rules = Hpa(2, 6, (replace(CPU, target=30), VALUE), DEFAULT_UP, DEFAULT_DOWN)
    assert decided({"cpu": 40.0, "latency": None}, 3, rules).desired == 4


def test_a_missing_metric_stops_a_step_down() -> None:
    rules = Hpa(2, 6, (CPU, VALUE), DEFAULT_UP, DEFAULT_DOWN)
    found = decided({"cpu": 28.0, "latency": None}, 5, rules)
    assert (found.desired, found.reason) == (5, "held at 5: latency has no value")


def test_no_metric_at_all_leaves_everything_as_it_is() -> None:
    assert decided({"cpu": None}, 5, hpa_rules(1, 10)).desired == 5


def test_the_reason_names_the_window_that_holds() -> None:
    rules = hpa_rules(1, 10)
    history = History(highs=((NOW - 100, 3),))
    found = hpa.decide(rules, {"cpu": 10.0}, Observed(3, 3), 3, history, NOW)
    assert (found.desired, found.reason) == (
        3,
        "held at 3: scale-down window of 300 s, 1 wanted by cpu 10 %, target 50 %, 3 ready",
    )


def test_the_reason_names_the_policy_that_limits() -> None:
    found = decided({"cpu": 500.0}, 2, hpa_rules(1, 100, ScalingRules(policies(1, 60, 0, 0))))
    assert (found.desired, found.reason) == (3, "3: cpu 500 %, target 50 %, 2 ready, at most 1 more in 60 s")


@pytest.mark.parametrize(("current", "bound"), [(12, 10), (1, 2)])
def test_bounds_come_before_metrics(current: int, bound: int) -> None:
    assert decided({"cpu": 50.0}, current, hpa_rules(2, 10)).desired == bound
