"""Whoever runs a canary may die after any of its changes, be slow, or meet another: it goes on, and ends once."""

import io
from dataclasses import replace as changed

import pytest
from msgspec.structs import replace
from tests.platform.canaries.runner.conftest import KEY, iris
from tests.platform.canaries.runner.fake_target import Died, Dying, PaperTarget

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import Canary
from pilotlight.canaries.runner import CanaryRunner, apply_release, start_canary
from pilotlight.plan.types import Capabilities
from pilotlight.release import apply, history
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.spec.canary_policy import parse_policy

POLICY = parse_policy({"steps": "20,100", "bake": "10s", "interval": "10s", "check": ["p99_ms<100", "error_rate<5%"],
                    "min-requests": 10, "keep-stable": "10s"})  # fmt: skip
LONGEST = 60  # ticks


def wanted(document: str) -> apply.ReleaseRequest:
    return apply.ReleaseRequest(read(Sources(("-",), stdin=io.StringIO(document))), Capabilities())


def started(document: str = "") -> PaperTarget:
    """With a canary that has just been started beside the iris example."""
    target = PaperTarget()
    apply_release(target, wanted(iris()))
    try_another(target, document or iris(most=2))
    return target


def try_another(target: PaperTarget, document: str) -> None:
    stable = next(each for each in target.found if history.receives_all_traffic(each))
    plain = wanted(document)
    apply_release(
        target,
        changed(plain, documents=history.with_canary_percent(plain.documents, 0, judged=True), note="canary 0 %"),
    )
    start_canary(target, target.found[0], stable, POLICY, target.now())


def current(target: PaperTarget) -> Canary:
    found = stored_history.decode_history(target.canary(KEY)).current
    assert found is not None
    return found


def runner(target: PaperTarget, holder: str = "a") -> CanaryRunner:
    return CanaryRunner(target, holder, target.now, target.clock)


def run(target: PaperTarget, dies_after: int = 0) -> int:
    """To its end, by one who dies after that many changes and another who comes after; how often somebody died."""
    deaths, ticking = 0, runner(target)
    if dies_after:
        ticking = CanaryRunner(Dying(target, dies_after), "a", target.now, target.clock)
    for _ in range(LONGEST):
        target.pass_time(10.0)
        try:
            ticking.tick(KEY)
        except Died:
            deaths, ticking = deaths + 1, runner(target, "b")
            target.seconds += 60.0  # as long as a holder may be silent
        if current(target).ended_at:
            return deaths
    raise AssertionError(current(target))


def notes(target: PaperTarget) -> list[str]:
    return [each.note.partition(":")[0] for each in reversed(target.found)]


def shares(target: PaperTarget) -> dict[str, int]:
    return {row.name: row.percent for row in target.rows() if row.percent}


GOOD = ["deploy", "canary 0 %", "canary 20 %", "canary 100 %", "canary promoted"]
BAD = ["deploy", "canary 0 %", "canary 20 %", "canary rolled back"]


def test_nobody_dies() -> None:
    target = started()
    assert run(target) == 0
    assert (current(target).phase, notes(target)) == ("Promoted", GOOD)
    assert shares(target) == {current(target).revision: 100}


@pytest.mark.parametrize("changes", range(1, 20))
def test_a_good_canary_is_promoted_once_whenever_its_runner_dies(changes: int) -> None:
    target = started()
    deaths = run(target, changes)
    assert (current(target).phase, notes(target)) == ("Promoted", GOOD), deaths
    assert shares(target) == {current(target).revision: 100}


@pytest.mark.parametrize("changes", range(1, 12))
def test_a_bad_canary_is_taken_back_whole_whenever_its_runner_dies(changes: int) -> None:
    target = started()
    canary = current(target)
    target.wrong[canary.revision] = 0.5
    run(target, changes)
    ended = current(target)
    assert (ended.phase, notes(target)) == ("RolledBack", BAD)
    assert "error_rate" in ended.reason
    assert shares(target) == {canary.stable: 100}


def test_a_death_after_the_last_change_is_too_late_to_matter() -> None:
    assert run(started(), 200) == 0


def test_one_canary_has_one_runner_until_he_is_silent() -> None:
    target = started()
    first, second = runner(target, "first"), runner(target, "second")
    assert first.tick(KEY) is not None
    target.pass_time(29.0)
    assert second.tick(KEY) is None
    assert current(target).holder == "first"
    target.pass_time(2.0)
    assert second.tick(KEY) is not None
    assert current(target).holder == "second"
    assert first.tick(KEY) is None


def test_who_leaves_lets_the_next_one_begin_at_once() -> None:
    target = started()
    first, second = runner(target, "first"), runner(target, "second")
    first.tick(KEY)
    first.release_lease(KEY)
    assert second.tick(KEY) is not None
    first.release_lease(KEY)
    assert current(target).holder == "second", "what is another's is not let go"


def test_a_runner_that_was_thought_dead_changes_nothing_any_more() -> None:
    target = started()
    old, target_of_old = runner(target, "old"), target.save_canary
    assert old.tick(KEY) is not None

    def late(*given: str) -> object:
        """While the old one waits for its answer, another takes over."""
        target.save_canary = target_of_old  # type: ignore[method-assign]
        target.seconds += 60.0
        assert runner(target, "new").tick(KEY) is not None
        return target_of_old(*given)  # type: ignore[arg-type]

    target.save_canary = late  # type: ignore[assignment,method-assign]
    assert old.tick(KEY) is None
    assert current(target).holder == "new"


def test_a_command_that_comes_in_the_middle_of_a_tick_is_not_lost() -> None:
    target = started()
    ticking, query = runner(target), target.query
    ticking.tick(KEY)
    target.pass_time(10.0)

    def asked(promql: str) -> object:
        target.query = query  # type: ignore[method-assign]
        kept = target.kept[KEY]
        ledger = stored_history.decode_history(kept)
        assert ledger.current is not None
        state = stored_history.encode_history(replace(ledger, current=replace(ledger.current, command="abort")))
        target.save_canary(KEY, state, kept.version)
        return query(promql)

    target.query = asked  # type: ignore[assignment,method-assign]
    ticking.tick(KEY)
    assert (current(target).phase, current(target).reason) == ("RolledBack", "aborted manually")
    assert notes(target) == BAD, "what it was about to do before it heard of the command was not done"


def test_time_in_which_nobody_watched_does_not_count_as_baked() -> None:
    target = started()
    runner(target, "a").tick(KEY)
    target.seconds += 86400.0
    after = runner(target, "b").tick(KEY)
    assert after is not None
    assert after.elapsed_s <= 3 * POLICY.interval_s


def test_a_revision_that_does_not_start_is_taken_back_at_once_with_its_reason() -> None:
    target = started()
    canary = current(target)
    target.failed[canary.revision] = "the weights are of another model"
    target.pass_time(1.0)
    runner(target).tick(KEY)
    assert current(target).phase == "RolledBack"
    assert "the weights are of another model" in current(target).reason
    assert shares(target) == {canary.stable: 100}


def test_a_deploy_beside_the_stable_side_begins_the_canary_anew() -> None:
    target = started()
    ticking = runner(target)
    first = current(target).revision
    ticking.tick(KEY)
    plain = wanted(iris(most=5))
    apply_release(target, changed(plain, documents=history.with_canary_percent(plain.documents, 20, judged=True)))
    target.pass_time(10.0)
    ticking.tick(KEY)
    again = current(target)
    assert again.revision not in (first, again.stable)
    assert (again.phase, again.weight, again.policy) == ("Progressing", 0, POLICY)
    (before,) = stored_history.decode_history(target.canary(KEY)).past
    assert (before.revision, before.phase) == (first, "Superseded")
    run(target)
    assert shares(target) == {again.revision: 100}


def test_a_deploy_past_the_canary_ends_it() -> None:
    target = started()
    ticking = runner(target)
    ticking.tick(KEY)
    apply_release(target, wanted(iris(most=5)))
    target.pass_time(10.0)
    ticking.tick(KEY)
    assert current(target).phase == "Superseded"
    assert ticking.tick(KEY) is None


def test_a_rollback_by_hand_ends_it_as_rolled_back() -> None:
    target = started()
    ticking = runner(target)
    ticking.tick(KEY)
    apply_release(target, wanted(iris()))
    target.pass_time(10.0)
    ticking.tick(KEY)
    assert (current(target).phase, current(target).reason) == ("RolledBack", "manual: deploy")


def test_the_stable_side_stays_at_nothing_until_it_is_let_go() -> None:
    target = started()
    ticking, stable = runner(target), current(target).stable
    while current(target).weight < 100:
        target.pass_time(10.0)
        ticking.tick(KEY)
    kept = {row.name: (row.percent, row.tags) for row in target.rows()}
    assert kept[stable] == (0, ("prev",))
    target.pass_time(10.0)
    ticking.tick(KEY)
    assert current(target).phase == "Promoted"
    assert stable not in {row.name for row in target.rows()}
