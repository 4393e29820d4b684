"""What holds for any data and any order of events."""

import math
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as any_of
from msgspec.structs import replace

from pilotlight.canaries.actions import Conditions, apply_action
from pilotlight.canaries.analysis import SEVERITY, Judgement, judge
from pilotlight.canaries.canary_state import ENDED, Canary, Measurement
from pilotlight.canaries.next_action import add_elapsed, next_action, record_judgement
from pilotlight.canaries.queries import Missing, ObservedCounts
from pilotlight.spec.canary_policy import CanaryPolicy, Check

NUMBERS = any_of.floats() | any_of.sampled_from([0.0, 1.0, 1e300, math.inf, -math.inf, math.nan, -1.0, 1e15, 49.5])
SEEN = any_of.builds(
    ObservedCounts,
    NUMBERS,
    NUMBERS,
    any_of.lists(any_of.tuples(NUMBERS, NUMBERS), max_size=6).map(tuple),
    NUMBERS,
    NUMBERS,
)
NOTHING = any_of.builds(
    Missing, any_of.sampled_from(["empty", "nan", "stale", "unreachable", "unusable"]), any_of.just("because")
)
BOUNDS = any_of.none() | any_of.floats(0, 60000)
CHECKS = any_of.builds(
    Check,
    any_of.sampled_from(["p50_ms", "p99_ms", "mean_ms", "error_rate", "rps", "own"]),
    any_of.just(""),
    BOUNDS,
    BOUNDS,
)
OWN = any_of.builds(Check, any_of.just("mine"), any_of.just("query"), BOUNDS, BOUNDS)
POLICIES = any_of.builds(
    CanaryPolicy,
    checks=any_of.lists(CHECKS.filter(lambda each: each.name != "own") | OWN, max_size=3).map(tuple),
    compare=any_of.sampled_from(["", "baseline"]),
    ratio=any_of.floats(1, 10),
    min_requests=any_of.integers(0, 100),
)


COMPARED = CanaryPolicy(compare="baseline", ratio=1.0, min_requests=0)
ONE = ObservedCounts(1.0, 0.0, ((-1.0, 1.0),))


@settings(max_examples=150, deadline=None)
@given(POLICIES, SEEN | NOTHING, SEEN | NOTHING, NUMBERS | NOTHING, any_of.integers(1, 10**9))
@example(COMPARED, ONE, ObservedCounts(1.0, 0.0, ((0.0, 1.0),)), 0.0, 1)
@example(COMPARED, ObservedCounts(1.0), ObservedCounts(1.8e301), 0.0, 1)
def test_a_judge_always_gives_a_verdict(
    policy: CanaryPolicy,
    canary: ObservedCounts | Missing,
    baseline: ObservedCounts | Missing,
    own: float | Missing,
    look: int,
) -> None:
    found = judge(policy, canary, baseline, {"mine": own}, [Measurement("p99_ms", "", "Successful", look=look)])
    assert found.verdict in SEVERITY
    assert found.measurements
    assert found.verdict == "Successful" or found.reason
    assert found.missing_requests >= 0
    assert found.missing_baseline_requests >= 0


VERDICTS = any_of.sampled_from([
    Judgement("Successful"), Judgement("Failed", reason="bad"), Judgement("Inconclusive", reason="unsure"),
    Judgement("Inconclusive", reason="few", missing_requests=5), Judgement("Error", reason="unreachable"), None,
])  # fmt: skip
EVENTS = any_of.lists(
    any_of.tuples(
        VERDICTS,
        any_of.builds(
            Conditions, any_of.sampled_from([True] * 3 + [False]), any_of.sampled_from([""] * 9 + ["crashed"])
        ),
        any_of.sampled_from(["", "", "", "pause", "resume", "promote", "promote-full", "abort"]),
        any_of.sampled_from([15.0, 15.0, 120.0, 0.0, -3600.0]),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(EVENTS, any_of.sampled_from([(5, 25, 50, 100), (1, 100), (100,)]), any_of.booleans())
def test_weights_only_rise_by_steps_until_it_is_taken_back(
    events: list[tuple[Judgement | None, Conditions, str, float]], steps: tuple[int, ...], auto: bool
) -> None:
    canary = Canary(CanaryPolicy(steps=steps, auto_promote=auto, inconclusive_limit=3), "new", "old", 2, 1, "")
    path = [canary]
    for judgement, facts, command, seconds in events:
        before = add_elapsed(canary, seconds, facts)
        before = record_judgement(before, judgement) if judgement is not None else before
        before = replace(before, command=command or before.command)
        move = next_action(before, judgement, facts)
        assert next_action(before, judgement, facts) == move
        canary = apply_action(before, move, "now")
        path.append(canary)
        assert canary.weight in (0, *steps)
        assert canary.weight <= steps[canary.step]
        if canary.weight > before.weight:
            assert facts.ready
        assert canary.elapsed_s >= path[-2].elapsed_s
    for earlier, later in pairwise(path):
        assert later.weight >= earlier.weight or later.phase == "RolledBack"
        assert earlier.phase not in ENDED or later.phase == earlier.phase
        assert later.phase != "RolledBack" or later.weight == 0
