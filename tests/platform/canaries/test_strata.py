"""What a canary's shares have told is kept with it and counts at the next, each share compared by itself."""

import math

import pytest
from msgspec import json
from msgspec.structs import replace

from pilotlight.canaries.actions import Conditions, Promote, SetWeight, apply_action
from pilotlight.canaries.analysis import Judgement, judge
from pilotlight.canaries.canary_state import Canary, Measurement
from pilotlight.canaries.next_action import next_action, record_judgement
from pilotlight.canaries.queries import Missing, ObservedCounts
from pilotlight.canaries.statistics import EarlierStrata, VariantCounts, earlier_strata, pooled
from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.spec.canary_policy import CanaryPolicy

READY = Conditions(ready=True)
POLICY = CanaryPolicy(compare="baseline")
CANARY = apply_action(Canary(POLICY, "new", "old", 2, 1, ""), SetWeight(5), "")


def seen(requests: float, errors: float = 0.0, slow: float = 0.0, fast_s: float = 0.1) -> ObservedCounts:
    """`slow` of the requests took up to a second, the others up to `fast_s`."""
    edges = (*LATENCY_BUCKETS, math.inf)
    below = tuple((edge, (edge >= fast_s) * (requests - slow) + (edge >= 1.0) * slow) for edge in edges)
    return ObservedCounts(requests, errors, below, (requests - slow) * fast_s + slow, 120.0)


def looked(canary: Canary, ours: ObservedCounts | Missing, theirs: ObservedCounts) -> tuple[Canary, Judgement]:
    judgement = judge(POLICY, ours, theirs, history=canary.measurements, earlier=earlier_strata(canary))
    return record_judgement(canary, judgement), judgement


def worse(judgement: Judgement, name: str = "error_rate") -> Measurement:
    return next(each for each in judgement.measurements if each.check == f"{name} vs baseline")


def test_what_a_share_has_told_is_kept_when_it_ends() -> None:
    canary, _ = looked(CANARY, seen(100, 2), seen(1900, 10))
    after = apply_action(canary, SetWeight(25), "")
    kept = json.decode(json.encode(after), type=Canary)
    assert earlier_strata(kept) == EarlierStrata([VariantCounts(seen(100, 2), seen(1900, 10))], 1)
    assert kept.stratum is None
    assert len(json.encode(after.strata)) < 2000


def test_a_look_that_finds_nothing_takes_nothing_back() -> None:
    canary, _ = looked(CANARY, seen(100, 2), seen(1900, 10))
    canary, _ = looked(canary, Missing("unreachable", "nobody answers"), seen(1900, 10))
    assert apply_action(canary, SetWeight(25), "").strata == (canary.stratum,)


@pytest.mark.parametrize("move", [SetWeight(25), Promote()])
def test_who_promotes_by_hand_is_not_told_again_what_the_share_before_told(move: SetWeight | Promote) -> None:
    canary, _ = looked(CANARY, seen(100, 9), seen(1900, 10))
    assert apply_action(replace(canary, command="promote"), move, "").strata == ()


@pytest.mark.parametrize(
    ("policy", "ours", "theirs"),
    [
        (replace(POLICY, on_inconclusive="pass", inconclusive_limit=1), seen(300, 8), seen(5700, 28)),
        (replace(POLICY, on_no_data="pass", inconclusive_limit=1), seen(10, 1), seen(190, 1)),
    ],
)
def test_a_share_that_passes_though_it_is_unclear_leaves_nothing_behind(
    policy: CanaryPolicy, ours: ObservedCounts, theirs: ObservedCounts
) -> None:
    """What looked bad by chance would be among the data of every later share, and no chance could explain it there."""
    told, _ = looked(CANARY, seen(300), seen(5700))
    second = apply_action(told, SetWeight(25), "")
    assert second.strata, "a share that looks fine counts at the next"
    judgement = judge(policy, ours, theirs, history=second.measurements)
    baked = replace(second, policy=policy, baked_s=policy.bake_s, observed_s=second.observed_s + policy.bake_s)
    unclear = record_judgement(baked, judgement)
    move = next_action(unclear, judgement, READY)
    assert (judgement.verdict, move) == ("Inconclusive", SetWeight(50))
    assert apply_action(unclear, move, "").strata == ()


def test_harm_that_two_shares_hint_at_is_proved_by_both() -> None:
    first, judgement = looked(CANARY, seen(300, 8), seen(5700, 28))
    assert worse(judgement).verdict == "Inconclusive"
    alone = judge(POLICY, seen(300, 11), seen(900, 5), history=first.measurements)
    assert worse(alone).verdict == "Inconclusive"
    _, both = looked(apply_action(first, SetWeight(25), ""), seen(300, 11), seen(900, 5))
    assert worse(both).verdict == "Failed"
    assert "in 600 requests" in both.reason


def test_slow_requests_of_two_shares_add_up_too() -> None:
    first, judgement = looked(CANARY, seen(300, slow=11), seen(5700, slow=60))
    assert worse(judgement, "p99_ms").verdict == "Inconclusive"
    _, both = looked(apply_action(first, SetWeight(25), ""), seen(300, slow=13), seen(900, slow=9))
    assert worse(both, "p99_ms").verdict == "Failed"


def test_a_bad_time_at_one_share_is_not_the_canarys_fault() -> None:
    """With half of the requests it meets the storm that the baseline meets, and hardly the calm before."""
    first, _ = looked(CANARY, seen(100), seen(1900))
    _, storm = looked(apply_action(first, SetWeight(50), ""), seen(1000, 100, 200), seen(1000, 100, 200))
    assert storm.verdict == "Successful"
    told = worse(storm)
    assert told.value == pytest.approx(told.baseline)


def test_the_baseline_is_told_as_if_it_had_been_asked_as_often_as_the_canary() -> None:
    pairs = [VariantCounts(seen(100, 1), seen(1900, 19)), VariantCounts(seen(300, 30), seen(300, 30))]
    canary, baseline = pooled(pairs)
    assert (canary.requests, canary.errors) == (400, 31)
    assert (baseline.requests, baseline.errors) == (pytest.approx(400), pytest.approx(31))
    assert baseline.buckets[-1] == (math.inf, pytest.approx(400))


def test_each_share_counts_its_looks_anew() -> None:
    canary = CANARY
    for _ in range(30):
        canary, _ = looked(canary, seen(100), seen(1900))
    harm = seen(200, 12), seen(600, 3)
    late = judge(POLICY, *harm, history=canary.measurements)
    assert worse(late).verdict == "Inconclusive", "after 30 looks at one share it takes more"
    fresh = replace(apply_action(canary, SetWeight(25), ""), strata=())
    assert worse(looked(fresh, *harm)[1]).verdict == "Failed"


def test_a_newer_canary_knows_nothing_of_the_shares_of_the_one_before() -> None:
    assert earlier_strata(Canary(POLICY, "newer", "old", 3, 1, "")) == EarlierStrata([], 0)
