"""What happens next to a canary, for every reason that there can be."""

from typing import Any

import pytest
from msgspec.structs import replace

from pilotlight.canaries.actions import (
    Action,
    Conditions,
    Finish,
    Pause,
    Promote,
    Resume,
    RollBack,
    SendProbes,
    SetWeight,
    Wait,
    apply_action,
    restart,
)
from pilotlight.canaries.analysis import Judgement
from pilotlight.canaries.canary_state import MAX_MEASUREMENTS, Canary, Measurement
from pilotlight.canaries.next_action import (
    ERROR_LIMIT,
    IDLE_LOOKS,
    PROBE_LOOKS,
    add_elapsed,
    comparison_window_s,
    next_action,
    record_judgement,
)
from pilotlight.spec.canary_policy import CanaryPolicy

READY = Conditions(ready=True)
GOOD = Judgement("Successful")
BAD = Judgement("Failed", (Measurement("p99_ms", "", "Failed", reason="p99_ms is 900 ms"),), "p99_ms is 900 ms")
UNSURE = Judgement("Inconclusive", reason="perhaps worse")
FEW = Judgement(
    "Inconclusive", reason="12 of the 50 required requests", missing_requests=38, missing_baseline_requests=5
)
ERROR = Judgement("Error", (Measurement("p99_ms", "", "Error", reason="nobody answers"),), "nobody answers")


def canary(policy: dict[str, Any] | None = None, **fields: Any) -> Canary:
    """At its first step of 5 %, and baked."""
    asked = CanaryPolicy(**{"steps": (5, 50, 100), "bake_s": 60.0, **(policy or {})})
    return Canary(**{
        "policy": asked, "revision": "new", "stable": "old", "generation": 2, "stable_generation": 1,
        "started_at": "", "weight": 5, "baked_s": 60.0, **fields,
    })  # fmt: skip


def test_nothing_moves_before_the_canary_is_ready() -> None:
    fresh = canary(weight=0, baked_s=0.0)
    assert next_action(fresh, None, Conditions(ready=False)) == Wait("new is not ready")
    assert next_action(fresh, None, READY) == SetWeight(5)
    assert next_action(canary(), GOOD, Conditions(ready=False)) == Wait("new is not ready")


def test_each_step_bakes_and_needs_a_successful_measurement() -> None:
    assert next_action(canary(baked_s=59.0), GOOD, READY) == Wait("at 5 % for another 1 s at least")
    assert next_action(canary(), None, READY) == Wait("waiting for the next measurement")
    assert next_action(canary(), GOOD, READY) == SetWeight(50)
    assert next_action(canary(step=1, weight=50), GOOD, READY) == Promote()


def test_a_weight_that_was_decided_and_not_set_is_set() -> None:
    assert next_action(canary(step=1, weight=5), None, READY) == SetWeight(50)


def test_with_manual_promotion_the_last_step_waits_for_a_person() -> None:
    manual = canary({"auto_promote": False}, step=1, weight=50)
    move = next_action(manual, GOOD, READY)
    assert move == Pause("every check passed; platformctl canary promote gives it all traffic")
    paused = apply_action(manual, move, "later")
    assert next_action(replace(paused, command="promote"), None, READY) == Promote()
    assert next_action(canary({"auto_promote": False}), GOOD, READY) == SetWeight(50)
    assert next_action(replace(manual, command="resume"), GOOD, READY) == move


def test_after_promotion_the_stable_side_is_kept_for_a_while_and_can_be_gone_back_to() -> None:
    promoted = apply_action(canary(step=1, weight=50), Promote(), "at")
    assert (promoted.weight, promoted.phase, promoted.baked_s, promoted.step) == (100, "Progressing", 0.0, 2)
    assert next_action(promoted, None, READY) == Wait("old keeps its replicas for another 30 s")
    assert next_action(replace(promoted, command="abort"), None, READY) == RollBack("aborted manually")
    assert next_action(replace(promoted, failures=2), BAD, READY) == RollBack("its checks failed")
    finished = apply_action(promoted, next_action(replace(promoted, baked_s=30.0), None, READY), "end")
    assert (finished.phase, finished.ended_at, finished.weight) == ("Promoted", "end", 100)


def test_failures_in_a_row_end_it_and_one_alone_does_not() -> None:
    once = record_judgement(canary(), BAD)
    assert (once.failures, next_action(once, BAD, READY)) == (1, Wait("p99_ms is 900 ms"))
    assert record_judgement(once, GOOD).failures == 0
    twice = record_judgement(once, BAD)
    assert next_action(twice, BAD, READY) == RollBack("p99_ms is 900 ms")


@pytest.mark.parametrize("between", [ERROR, UNSURE, FEW])
def test_a_measurement_that_tells_nothing_takes_no_failure_back(between: Judgement) -> None:
    twice = record_judgement(record_judgement(record_judgement(canary(), BAD), between), BAD)
    assert next_action(twice, BAD, READY) == RollBack("p99_ms is 900 ms")


def test_sides_are_compared_over_the_time_of_one_share_and_not_its_first_interval() -> None:
    first = apply_action(canary(weight=0), SetWeight(5), "")
    assert comparison_window_s(add_elapsed(first, 40.0, READY)) == 40.0, "before it nothing was shared"
    second = apply_action(add_elapsed(first, 40.0, READY), SetWeight(50), "")
    assert comparison_window_s(add_elapsed(second, 10.0, READY)) == 0.0
    assert (
        comparison_window_s(add_elapsed(replace(second, phase="Paused"), 75.0, READY))
        == 75.0 - second.policy.interval_s
    )


def test_who_is_asked_at_a_new_share_is_still_asked() -> None:
    """Counted from the share's beginning there are fewer than before it."""
    counts = [*range(0, 500, 40), 0, 10, 20]
    looks = tuple(Measurement("p50_ms", "", "Inconclusive", requests=n, look=k) for k, n in enumerate(counts, 1))
    assert isinstance(next_action(canary(measurements=looks), FEW, READY), Wait)
    silent = looks + tuple(replace(looks[-1], look=len(looks) + k) for k in range(1, IDLE_LOOKS + 1))
    assert isinstance(next_action(canary(measurements=silent), FEW, READY), SendProbes)


def test_a_paused_canary_that_fails_is_rolled_back_all_the_same() -> None:
    paused = canary(phase="Paused", failures=2, measurements=BAD.measurements)
    assert next_action(paused, BAD, READY) == RollBack("p99_ms is 900 ms")


def test_a_canary_that_does_not_start_is_rolled_back_with_the_reason() -> None:
    move = next_action(canary(weight=0), None, Conditions(ready=False, failed="no module named torch"))
    assert move == RollBack("new does not start: no module named torch")


def test_a_deadline_ends_what_does_not_come_through() -> None:
    late = canary(elapsed_s=3601.0)
    assert next_action(late, None, READY) == RollBack("steps not finished within the deadline of 3600 s")
    assert next_action(replace(late, weight=0), None, Conditions(ready=False)) == next_action(late, None, READY)
    assert isinstance(next_action(replace(late, phase="Paused"), None, READY), Wait)
    assert isinstance(next_action(replace(late, weight=100, step=2), None, READY), Wait | Finish)


def test_a_newer_release_supersedes_it_and_begins_anew_with_the_same_policy() -> None:
    old = canary({"ratio": 3.0}, step=1, weight=50, failures=1, measurements=BAD.measurements)
    move = next_action(old, BAD, Conditions(ready=True, newer=True))
    assert move == Finish("Superseded", "a newer release was deployed")
    assert apply_action(old, move, "now").phase == "Superseded"
    again = restart(old, "newer", 7, "now")
    assert again == Canary(old.policy, "newer", "old", 7, 1, "now")


@pytest.mark.parametrize(
    ("command", "state", "move"),
    [
        ("pause", {}, Pause("paused manually")),
        ("pause", {"phase": "Paused", "reason": "unsure"}, Wait("unsure")),
        ("resume", {"phase": "Paused"}, Resume()),
        ("resume", {}, Wait("waiting for the next measurement")),
        ("promote", {}, SetWeight(50)),
        ("promote", {"phase": "Paused"}, SetWeight(50)),
        ("promote", {"baked_s": 0.0}, SetWeight(50)),
        ("promote", {"weight": 0, "baked_s": 0.0}, SetWeight(5)),
        ("promote", {"step": 1, "weight": 50}, Promote()),
        ("promote-full", {}, Promote()),
        ("promote-full", {"phase": "Paused"}, Promote()),
        ("promote-full", {"step": 2, "weight": 100, "baked_s": 0.0}, Wait("old keeps its replicas for another 30 s")),
        ("abort", {}, RollBack("aborted manually")),
        ("abort", {"phase": "Paused"}, RollBack("aborted manually")),
    ],
)
def test_what_a_person_wishes_is_done_and_then_forgotten(command: str, state: dict[str, Any], move: Action) -> None:
    asked = canary(command=command, **state)
    assert next_action(asked, None, READY) == move
    assert apply_action(asked, move, "now").command == ""


def test_a_command_that_has_to_wait_is_kept() -> None:
    asked = canary(command="promote", weight=0, baked_s=0.0)
    move = next_action(asked, None, Conditions(ready=False))
    assert move == Wait("new is not ready")
    assert apply_action(asked, move, "now").command == "promote"


def test_a_paused_canary_stays_where_it_is_until_somebody_asks() -> None:
    paused = apply_action(canary(), Pause("unsure"), "now")
    assert (paused.phase, paused.reason, paused.weight) == ("Paused", "unsure", 5)
    assert next_action(paused, GOOD, READY) == Wait("unsure")
    resumed = apply_action(replace(paused, command="resume"), Resume(), "now")
    assert (resumed.phase, next_action(resumed, GOOD, READY)) == ("Progressing", SetWeight(50))


@pytest.mark.parametrize(
    ("policy", "move"),
    [("pause", Pause("perhaps worse")), ("fail", RollBack("perhaps worse")), ("pass", SetWeight(50))],
)
def test_what_stays_unclear_is_waited_out_and_then_decided_by_policy(policy: str, move: Action) -> None:
    here = canary({"on_inconclusive": policy, "inconclusive_limit": 3})
    for _ in range(2):
        here = record_judgement(here, UNSURE)
        assert next_action(here, UNSURE, READY) == Wait("perhaps worse")
    assert next_action(record_judgement(here, UNSURE), UNSURE, READY) == move
    assert record_judgement(here, GOOD).inconclusive == 0


def test_an_unclear_measurement_while_it_bakes_does_not_count() -> None:
    assert record_judgement(canary(baked_s=10.0), UNSURE).inconclusive == 0


def test_nobody_is_probed_before_it_is_known_what_the_baseline_lacks() -> None:
    early = record_judgement(canary({"compare": "baseline"}, observed_s=6.0), FEW)
    assert next_action(early, FEW, READY) == Wait(FEW.reason)
    later = replace(early, observed_s=8.0)
    assert next_action(later, FEW, READY) == SendProbes(38, 5)


def test_too_few_requests_are_probed_once_and_then_paused_for() -> None:
    here = record_judgement(canary(), FEW)
    assert next_action(canary(baked_s=1.0), FEW, READY) == Wait("at 5 % for another 59 s at least")
    assert next_action(here, FEW, READY) == SendProbes(38, 5)
    here = apply_action(here, SendProbes(38, 5), "now")
    for _ in range(PROBE_LOOKS - 1):
        here = record_judgement(here, FEW)
        assert next_action(here, FEW, READY) == Wait("probes were sent and are not in the metrics yet")
    move = next_action(record_judgement(here, FEW), FEW, READY)
    assert move == Pause("too few requests after 60 s: 12 of the 50 required requests")
    assert next_action(record_judgement(here, GOOD), GOOD, READY) == SetWeight(50)


def test_each_step_may_be_probed_anew() -> None:
    probed = apply_action(canary(), SendProbes(38), "now")
    following = replace(apply_action(probed, SetWeight(50), "now"), baked_s=60.0)
    assert next_action(record_judgement(following, FEW), FEW, READY) == SendProbes(38, 5)


def test_while_requests_still_come_they_are_waited_for() -> None:
    """Probes among a few slow requests would hide them."""
    here = canary({"inconclusive_limit": 30})
    for look in range(1, 20):
        few = replace(FEW, measurements=(Measurement("p99_ms", "", "Inconclusive", requests=min(look, 9), look=look),))
        here = record_judgement(here, few)
        asked = look < 9 + IDLE_LOOKS  # the last request came with look 9
        assert next_action(here, few, READY) == (Wait(FEW.reason) if asked else SendProbes(38, 5)), look


def test_requests_that_come_too_slowly_are_not_waited_for_without_end() -> None:
    here = canary({"inconclusive_limit": 3})
    for look in range(1, 4):
        few = replace(FEW, measurements=(Measurement("p99_ms", "", "Inconclusive", requests=look, look=look),))
        here = record_judgement(here, few)
    assert next_action(here, few, READY) == SendProbes(38, 5)


TOO_FEW = "too few requests after 60 s: 12 of the 50 required requests"


@pytest.mark.parametrize(
    ("policy", "move"), [("pause", Pause(TOO_FEW)), ("fail", RollBack(TOO_FEW)), ("pass", SetWeight(50))]
)
def test_a_policy_says_what_no_data_mean(policy: str, move: Action) -> None:
    here = record_judgement(canary({"on_no_data": policy}), FEW)
    assert next_action(here, FEW, READY) == move


def test_measurements_that_cannot_be_made_pause_it_and_are_no_failure() -> None:
    here = canary()
    for _ in range(ERROR_LIMIT - 1):
        here = record_judgement(here, ERROR)
        assert next_action(here, ERROR, READY) == Wait("nobody answers")
    here = record_judgement(here, ERROR)
    assert next_action(here, ERROR, READY) == Pause("4 measurements in a row failed: nobody answers")
    assert (here.failures, record_judgement(here, GOOD).errors) == (0, 0)


def test_time_is_added_as_it_passes_and_never_taken_back() -> None:
    here = canary(weight=0, baked_s=0.0)
    waited = add_elapsed(here, 10.0, Conditions(ready=False))
    assert (waited.elapsed_s, waited.observed_s, waited.baked_s) == (10.0, 0.0, 0.0)
    serving = add_elapsed(replace(waited, weight=5), 15.0, READY)
    assert (serving.elapsed_s, serving.observed_s, serving.baked_s) == (25.0, 15.0, 15.0)
    assert add_elapsed(serving, -3600.0, READY) == serving
    assert add_elapsed(serving, float("nan"), READY) == serving
    unready = add_elapsed(serving, 5.0, Conditions(ready=False))
    assert (unready.observed_s, unready.baked_s) == (20.0, 15.0)
    paused = add_elapsed(replace(serving, phase="Paused"), 5.0, READY)
    assert (paused.elapsed_s, paused.observed_s, paused.baked_s) == (25.0, 20.0, 15.0)


def test_an_ended_canary_does_nothing_any_more() -> None:
    ended = apply_action(canary(command="abort"), RollBack("aborted manually"), "end")
    assert (ended.phase, ended.weight, ended.command, ended.ended_at) == ("RolledBack", 0, "", "end")
    assert next_action(replace(ended, command="promote"), GOOD, READY) == Wait("aborted manually")
    assert add_elapsed(ended, 5.0, READY) == ended


def test_only_the_last_measurements_are_kept() -> None:
    here = canary()
    for number in range(MAX_MEASUREMENTS + 5):
        here = record_judgement(here, Judgement("Successful", (Measurement("p99_ms", "", "Successful", look=number),)))
    assert len(here.measurements) == MAX_MEASUREMENTS
    assert here.measurements[-1].look == MAX_MEASUREMENTS + 4


def test_a_single_step_of_all_requests_is_a_promotion() -> None:
    fresh = canary({"steps": (100,)}, weight=0)
    assert next_action(fresh, None, READY) == Promote()
    assert isinstance(next_action(canary({"steps": (100,), "auto_promote": False}, weight=0), None, READY), Pause)
