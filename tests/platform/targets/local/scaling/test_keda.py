"""KEDA's steps between zero and one, its fallbacks and pauses, with the numbers of its own tests and pages."""

from dataclasses import replace
from typing import Any

import pytest

from pilotlight.targets.local.scaling import keda
from pilotlight.targets.local.scaling.decision import decide
from pilotlight.targets.local.scaling.from_manifests import DEFAULT_DOWN, DEFAULT_UP
from pilotlight.targets.local.scaling.types import Decision, Fallback, Hpa, Metric, Observed, Sample

QUEUE = Metric("queue", "prometheus", "AverageValue", 10, ignore_null=False)
REQUESTS = Metric("requests", "requests", "AverageValue", 10)
LATENCY = Metric("latency", "prometheus", "Value", 0.5, activation=1_000_000, ignore_null=False)
DOWN = replace(DEFAULT_DOWN, window_s=0)


def scaled(low: int, *metrics: Metric, **more: Any) -> Hpa:
    given = {"up": DEFAULT_UP, "down": DOWN, "keda": True, "polling_s": 15.0, **more}
    return Hpa(low, given.pop("high", 100), metrics or (QUEUE,), **given)


class Object:
    """A ScaledObject whose replicas do at once what was decided."""

    def __init__(self, rules: Hpa, replicas: int, *, active: bool = False) -> None:
        self.rules, self.replicas, self.now, self.state = rules, replicas, 0.0, None
        self.created = -1e9
        if not active and replicas:
            self.state = replace(self.ask(queue=0.0, after=0).state, last_active=None, wanted=replicas)

    def ask(self, after: float = 1, waiting: int = 0, **metrics: float | None) -> Decision:
        self.now += after
        seen = Observed(
            self.replicas, self.replicas, waiting=waiting, metrics=metrics, created_at=self.created, was_ready=True
        )
        found = decide(self.rules, seen, self.state, self.now)
        self.state, self.replicas = found.state, found.desired
        return found


def test_not_active_goes_to_the_minimum_of_zero() -> None:
    assert Object(scaled(0), 10).ask(queue=0.0).desired == 0


def test_not_active_goes_up_to_the_minimum() -> None:
    found = Object(scaled(5), 1)
    found.state = replace(found.state, wanted=1)
    assert found.ask(queue=0.0).desired == 5


@pytest.mark.parametrize(("low", "count"), [(0, 1), (5, 5)])
def test_active_goes_from_zero_to_the_minimum_or_one(low: int, count: int) -> None:
    found = Object(scaled(low), 0).ask(queue=50.0)
    assert (found.desired, found.reason) == (count, f"{count}: queue 50 is above its activation threshold 0")


def test_not_active_goes_to_the_idle_count() -> None:
    assert Object(scaled(5, idle_replicas=0), 10).ask(queue=0.0).desired == 0


def test_active_goes_from_idle_to_the_minimum() -> None:
    assert Object(scaled(5, idle_replicas=0), 0).ask(queue=1.0).desired == 5


def test_activation_is_above_and_not_at_the_threshold() -> None:
    rules = scaled(0, replace(QUEUE, activation=50))
    assert Object(rules, 0).ask(queue=50.0).desired == 0
    assert Object(rules, 0).ask(queue=50.1).desired == 1


def test_below_the_activation_threshold_even_a_large_value_keeps_it_at_zero() -> None:
    assert Object(scaled(0, replace(QUEUE, target=10, activation=50)), 0).ask(queue=40.0).desired == 0


def test_one_waiting_request_wakes_at_once() -> None:
    found = Object(scaled(0, REQUESTS, LATENCY), 0).ask(waiting=1)
    assert (found.desired, found.reason) == (1, "1: requests 1 is above its activation threshold 0")


def test_latency_alone_never_wakes() -> None:
    assert Object(scaled(0, REQUESTS, LATENCY), 0).ask(latency=9.0).desired == 0


def test_zero_comes_after_the_cooldown() -> None:
    found = Object(scaled(0, cooldown_s=300), 1, active=True)
    assert found.ask(queue=5.0).desired == 1
    held = found.ask(300, queue=0.0)
    assert (held.desired, held.reason) == (1, "held at 1: cooldown of 300 s, 0 s left")
    gone = found.ask(1, queue=0.0)
    assert (gone.desired, gone.reason) == (0, "0: no trigger active for 300 s")


def test_a_new_object_gets_its_initial_cooldown() -> None:
    rules = scaled(0, cooldown_s=10, initial_cooldown_s=100)
    state, seen = None, Observed(0, 0, metrics={"queue": 0.0}, created_at=0.0, was_ready=False)
    for now, count in ((0.0, 1), (99.0, 1), (101.0, 0)):
        found = decide(rules, seen, state, now)
        state = found.state
        assert found.desired == count


def test_the_hpa_scales_down_to_one_while_the_cooldown_runs() -> None:
    found = Object(scaled(0), 5, active=True)
    found.ask(queue=50.0)
    assert found.ask(16, queue=0.0).desired == 1
    assert found.ask(1, queue=0.0).rule == "cooldown"


def test_what_runs_when_nothing_is_remembered_gets_a_cooldown() -> None:
    assert Object(scaled(0), 1, active=True).ask(queue=0.0).desired == 1


def test_above_zero_the_hpa_decides() -> None:
    assert Object(scaled(1), 4, active=True).ask(queue=60.0).desired == 6


def test_requests_are_averaged_over_a_poll() -> None:
    samples = [Sample(100.0 + i, 30.0 if i % 2 else 20.0, 1) for i in range(15)]
    seen = Observed(1, 1, samples, in_flight=30)
    found = decide(scaled(0, REQUESTS), seen, None, 114.5)
    assert (found.desired, found.reason) == (3, "3: requests 24.67, target 10 per replica")


FALLBACKS = [
    # behaviour, replicas of the fallback, running, wanted
    ("static", 10, 5, 10),
    ("currentReplicas", 10, 5, 5),
    ("currentReplicasIfHigher", 10, 15, 15),
    ("currentReplicasIfHigher", 10, 5, 10),
    ("currentReplicasIfLower", 10, 5, 5),
    ("currentReplicasIfLower", 10, 15, 10),
    ("", 10, 5, 10),
]


@pytest.mark.parametrize("metric", [QUEUE, replace(LATENCY, name="queue")], ids=["AverageValue", "Value"])
@pytest.mark.parametrize(("how", "replicas", "running", "wanted"), FALLBACKS)
def test_a_fallback_wants_what_kedas_wants(how: str, replicas: int, running: int, wanted: int, metric: Metric) -> None:
    rules = scaled(1, metric, fallback=Fallback(3, replicas, how))
    assert keda.fallback_count(Fallback(3, replicas, how), running) == wanted
    found = Object(rules, running, active=True)
    for _ in range(3):
        assert found.ask(15, queue=None).desired == running
    last = found.ask(15, queue=None)
    assert (last.desired, last.reason) == (wanted, f"{wanted} (fallback): queue failed 4 times")


def test_failures_are_counted_by_polls_and_not_by_questions() -> None:
    found = Object(scaled(1, fallback=Fallback(3, 10)), 2, active=True)
    assert {found.ask(1, queue=None).desired for _ in range(40)} == {2}
    assert [found.ask(1, queue=None).desired for _ in range(15)][-1] == 6  # four more at a time


def test_an_answer_ends_the_fallback() -> None:
    found = Object(scaled(1, fallback=Fallback(0, 5)), 1, active=True)
    assert found.ask(15, queue=None).desired == 5
    assert found.ask(15, queue=10.0).desired == 1
    assert found.state.failures == {}


def test_a_fallback_wakes_from_zero() -> None:
    found = Object(scaled(0, fallback=Fallback(1, 3)), 0)
    assert [found.ask(15, queue=None).desired for _ in range(3)] == [0, 1, 3]


def test_a_fallback_of_zero_lets_an_idle_service_sleep() -> None:
    rules = scaled(0, REQUESTS, LATENCY, fallback=Fallback(3, 0, "currentReplicasIfHigher"), cooldown_s=60)
    found = Object(rules, 1, active=True)
    counts = [found.ask(15, latency=None).desired for _ in range(3)]
    assert counts == [1, 1, 1]
    assert Object(rules, 0).ask(15, latency=None).desired == 0


def test_without_a_fallback_a_failing_source_holds_what_runs() -> None:
    found = Object(scaled(0), 3, active=True)
    assert {found.ask(100, queue=None).desired for _ in range(10)} == {3}
    assert Object(scaled(0), 0).ask(queue=None).desired == 0


@pytest.mark.parametrize(
    ("paused", "count"), [({"paused": True}, 4), ({"paused_replicas": 2}, 2), ({"paused_replicas": 0}, 0)]
)
def test_a_pause_holds_whatever_is_asked(paused: dict[str, Any], count: int) -> None:
    found = Object(scaled(1, **paused), 4, active=True).ask(queue=900.0)
    assert (found.desired, found.rule) == (count, "paused")


def test_a_paused_direction_holds_only_that_direction() -> None:
    assert Object(scaled(1, paused_out=True), 4, active=True).ask(queue=900.0).desired == 4
    assert Object(scaled(1, paused_out=True), 4, active=True).ask(queue=10.0).desired == 1
    assert Object(scaled(1, paused_in=True), 4, active=True).ask(queue=10.0).desired == 4
    assert Object(scaled(1, paused_in=True), 4, active=True).ask(queue=70.0).desired == 7
    assert Object(scaled(0, paused_out=True), 0).ask(queue=70.0).desired == 0
    assert Object(scaled(0, paused_in=True), 3).ask(queue=0.0).desired == 3


def test_forced_activation_keeps_one() -> None:
    assert Object(scaled(0, force_activation=True), 0).ask(queue=0.0).desired == 1


def test_cpu_alone_is_always_active() -> None:
    cpu = Metric("cpu", "cpu", "Utilization", 50)
    found = Object(scaled(1, cpu), 2, active=True).ask(cpu=100.0)
    assert (found.desired, found.reason) == (4, "4: cpu 100 %, target 50 %, 2 ready")


@pytest.mark.parametrize(
    ("result", "ignore", "value"),
    [(None, True, 0.0), (None, False, None), (float("nan"), True, 0.0), (float("inf"), False, None), (3.0, False, 3.0)],
)
def test_an_empty_answer_is_zero_only_where_nulls_are_ignored(
    result: float | None, ignore: bool, value: float | None
) -> None:
    assert keda.query_value(replace(QUEUE, ignore_null=ignore), result) == value


def test_a_formula_makes_one_metric_of_all() -> None:
    rules = scaled(0, QUEUE, LATENCY, formula="max(queue, latency * 100)", formula_target=10)
    found = Object(rules, 0)
    assert found.ask(queue=0.0, latency=0.0).desired == 0
    assert found.ask(queue=5.0, latency=0.4).desired == 1
    assert found.ask(16, queue=5.0, latency=0.4).desired == 4


def test_a_formula_handles_its_failing_triggers_itself() -> None:
    fallback = Fallback(0, 7, "scalingModifiers")
    rules = scaled(1, QUEUE, LATENCY, formula="queue ?? latency", formula_target=1, fallback=fallback)
    found = Object(rules, 1, active=True)
    assert found.ask(15, queue=None, latency=3.0).desired == 3
    assert found.ask(15, queue=None, latency=None).desired == 7


def test_a_formula_falls_back_as_a_whole() -> None:
    rules = scaled(1, QUEUE, LATENCY, formula="queue + latency", formula_target=2, fallback=Fallback(1, 4))
    found = Object(rules, 1, active=True)
    assert found.ask(15, queue=None, latency=3.0).desired == 1
    assert found.ask(15, queue=None, latency=3.0).desired == 4


def test_thousandths_are_what_is_compared() -> None:
    assert Object(scaled(0), 0).ask(queue=0.0009).desired == 0
