"""One revision from its first start to zero and back, second by second, with the reasons that a person reads."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from pilotlight.targets.local.scaling.decision import decide
from pilotlight.targets.local.scaling.types import Decision, Fixed, Kpa, Observed, Sample


class Life:
    """A revision whose replicas do at once what was decided."""

    def __init__(self, rules: Kpa) -> None:
        self.rules, self.now, self.state = rules, 1000.0, None
        self.replicas = self.ready = 0
        self.was_ready = False
        self.samples: list[Sample] = []

    def second(self, load: float = 0.0, waiting: int = 0, starts: bool = True, **more: object) -> Decision:
        self.now += 1
        if load:
            self.samples.append(Sample(self.now, load, load))
        seen = Observed(
            self.replicas, self.ready, self.samples[-120:], waiting, int(load), was_ready=self.was_ready, **more
        )
        found = decide(self.rules, seen, self.state, self.now)
        self.state = found.state
        self.replicas = found.desired
        self.ready = found.desired if starts else min(self.ready, found.desired)
        self.was_ready = self.was_ready or self.ready > 0
        return found

    def seconds(self, count: int, load: float = 0.0) -> Decision:
        return [self.second(load) for _ in range(count)][-1]

    def until(self, wanted: Callable[[Decision], bool], limit: int = 1000) -> int:
        return next(passed for passed in range(1, limit) if wanted(self.second()))


def test_a_new_revision_starts_serves_falls_to_zero_and_wakes() -> None:
    life = Life(Kpa(target=10))
    assert life.second().desired == 1
    assert life.seconds(20, 37.2).desired == 6
    assert 60 <= life.until(lambda found: found.desired == 0) <= 70
    asleep = life.seconds(300)
    assert (asleep.desired, asleep.reason, asleep.rule) == (0, "0: no requests for 60 s", "zero")
    assert life.second(waiting=1).desired == 1


def test_a_reason_tells_the_numbers() -> None:
    life = Life(Kpa(target=10, utilization=1))
    assert life.seconds(70, 37.2).reason == "4: 37.2 concurrent requests over 60 s, target 10 per replica"


def test_requests_that_wait_at_zero_count_at_once() -> None:
    life = Life(Kpa(target=10, utilization=1, activation_scale=1))
    life.was_ready = True
    assert life.second(waiting=25).desired == 3
    few = Life(Kpa(target=10, activation_scale=2))
    few.was_ready = True
    assert few.second(waiting=1).desired == 2


def test_a_request_of_hours_keeps_its_replica() -> None:
    life = Life(Kpa())
    life.seconds(5, 1)
    seen = Observed(1, 1, life.samples, in_flight=1)
    state = life.state
    for second in range(1, 1000):
        found = decide(life.rules, seen, state, life.now + second)
        state = found.state
        assert found.desired == 1


def test_the_last_replica_is_kept_for_its_retention() -> None:
    short, long = Life(Kpa()), Life(Kpa(retention_s=90))
    for life in (short, long):
        life.seconds(5, 1)
    first = short.until(lambda found: found.desired == 0)
    assert long.until(lambda found: found.desired == 0) - first == pytest.approx(90, abs=2)


def test_the_grace_counts_where_the_burst_found_room() -> None:
    roomy = Life(Kpa(target=100, burst_capacity=0))
    tight = Life(Kpa(target=100, burst_capacity=211))
    for life in (roomy, tight):
        life.seconds(5, 1)
    waits = [life.until(lambda found: found.desired == 0) for life in (roomy, tight)]
    assert waits[0] - waits[1] == pytest.approx(30, abs=2)


def test_a_revision_that_never_becomes_ready_is_given_up_after_its_deadline() -> None:
    life = Life(Kpa(progress_s=60))
    held = [life.second(starts=False) for _ in range(89)]
    assert {found.desired for found in held} == {1}
    assert held[-1].reason == "held at 1: starting"
    given_up = [life.second(starts=False) for _ in range(5)][-1]
    assert given_up.desired == 0
    assert "not ready within 90 s" in given_up.reason or given_up.rule == "zero"


def test_the_initial_scale_holds_until_it_was_reached_once() -> None:
    life = Life(Kpa(initial_scale=3))
    assert [life.second(starts=False).desired for _ in range(5)] == [3] * 5
    life.ready = 3
    life.was_ready = True
    life.second()
    assert life.until(lambda found: found.desired < 3) <= 5


def test_what_ran_before_a_restart_of_the_scaler_is_kept_for_a_window() -> None:
    state, counts = None, []
    for second in range(70):
        found = decide(Kpa(), Observed(4, 4), state, 1000.0 + second)
        state = found.state
        counts.append(found.desired)
    assert set(counts[:60]) == {4}
    assert counts[-1] < 4


def test_a_step_down_halves_at_most() -> None:
    life = Life(Kpa(target=1, utilization=1))
    life.seconds(200, 8)
    life.rules = replace(life.rules, window_s=6)
    found = [life.second() for _ in range(20)]
    counts = [decision.desired for decision in found]
    assert counts[0] == 8
    assert counts[-1] == 0
    assert all(after >= before // 2 for before, after in pairwise(counts))


def test_fixed_is_fixed() -> None:
    assert decide(Fixed(3), Observed(1, 1), None, 0.0) == Decision(3, "3: fixed", rule="fixed")


def test_rules_of_another_kind_begin_anew() -> None:
    found = decide(Kpa(), Observed(1, 1), "something else", 5.0)
    assert found.desired == 1


def test_an_idle_service_costs_microseconds() -> None:
    state = decide(Kpa(), Observed(0, 0), None, 0.0).state
    seen = Observed(0, 0)
    best = min(_timed(seen, state) for _ in range(5))
    assert best < 50e-6


def _timed(seen: Observed, state: object) -> float:
    start = time.thread_time()
    for _ in range(200):
        decide(RULES, seen, state, 5.0)
    return (time.thread_time() - start) / 200


RULES = Kpa()
