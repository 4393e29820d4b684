"""Others deploy, take over or write in the middle of a runner's tick: what it had decided is not done any more."""

from collections.abc import Callable
from dataclasses import replace as changed

import pytest
from msgspec.structs import replace
from tests.platform.canaries.runner.conftest import KEY, iris
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import (
    POLICY,
    apply_release,
    current,
    notes,
    runner,
    shares,
    started,
    wanted,
)

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import Canary
from pilotlight.canaries.queries import MetricScope, metric_queries
from pilotlight.errors import Conflict
from pilotlight.release import history
from pilotlight.spec.canary_policy import parse_policy
from pilotlight.targets.target import CanaryRecord
from platformctl.canary import follow

SIDE = MetricScope(*KEY, "any", 90.0)


def once(target: PaperTarget, name: str, meanwhile: Callable[[], object], *, after: bool = False) -> None:
    """Before, or after, the target's next answer; of the metrics', after the last."""
    asked, left = getattr(target, name), len(metric_queries(SIDE)) if name == "query" else 1

    def called(*given: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left:
            return asked(*given, **named)
        setattr(target, name, asked)
        if not after:
            meanwhile()
        answer = asked(*given, **named)
        if after:
            meanwhile()
        return answer

    setattr(target, name, called)


def write(target: PaperTarget, **changes: object) -> None:
    kept = target.kept[KEY]
    ledger = replace(stored_history.decode_history(kept), current=replace(current(target), **changes))
    target.save_canary(KEY, stored_history.encode_history(ledger), kept.version)


def ready_to_promote() -> PaperTarget:
    """The next tick of a runner `a` has enough to give it all requests."""
    target = started()
    target.pass_time(10.0)
    runner(target).tick(KEY)
    assert current(target).weight == 20
    target.pass_time(10.0)
    return target


def test_what_was_deployed_while_a_runner_measured_stays() -> None:
    target = ready_to_promote()
    once(target, "query", lambda: apply_release(target, wanted(iris(most=7))), after=True)
    runner(target).tick(KEY)
    assert notes(target) == ["deploy", "canary 0 %", "canary 20 %", "deploy"]
    assert current(target).phase == "Superseded"
    assert set(shares(target)) == history.revisions(target.found[0])


def test_what_was_deployed_while_a_runner_planned_stays() -> None:
    target = ready_to_promote()
    once(target, "live", lambda: apply_release(target, wanted(iris(most=7))), after=True)
    runner(target).tick(KEY)
    assert notes(target) == ["deploy", "canary 0 %", "canary 20 %", "deploy"]


def test_another_canary_that_was_started_while_a_runner_measured_is_tried_from_its_beginning() -> None:
    target = ready_to_promote()
    other = wanted(iris(most=7))
    documents = history.with_canary_percent(other.documents, 0, judged=True)
    once(target, "query", lambda: apply_release(target, changed(other, documents=documents)), after=True)
    runner(target).tick(KEY)
    assert current(target).weight == 0
    assert current(target).revision in history.revisions(target.found[0])
    assert shares(target) == {current(target).stable: 100}


def test_who_was_slow_does_not_undo_what_another_did_in_its_place() -> None:
    target = ready_to_promote()
    stable = current(target).stable

    def aborted() -> None:
        target.seconds += 40.0  # longer than a holder may be silent
        write(target, command="abort")
        assert runner(target, "b").tick(KEY) is not None

    once(target, "query", aborted)
    assert runner(target, "a").tick(KEY) is None
    assert (current(target).phase, shares(target)) == ("RolledBack", {stable: 100})
    assert notes(target) == ["deploy", "canary 0 %", "canary 20 %", "canary rolled back"]


def test_who_was_slow_does_not_act_for_one_who_has_taken_over_and_waits() -> None:
    """No release was made since, so that nothing but the hold tells."""
    target = ready_to_promote()

    def paused() -> None:
        target.seconds += 40.0
        write(target, command="pause")
        assert runner(target, "b").tick(KEY) is not None

    once(target, "query", paused)
    assert runner(target, "a").tick(KEY) is None
    assert (current(target).phase, current(target).weight) == ("Paused", 20)
    assert notes(target) == ["deploy", "canary 0 %", "canary 20 %"]


def many_steps() -> PaperTarget:
    target = ready_to_promote()
    write(target, policy=parse_policy({"steps": "10,40,70,100", "bake": "1h", "interval": "10s", "min-requests": 10}))
    return target


def test_a_command_is_fulfilled_once_though_others_write_meanwhile() -> None:
    target = many_steps()
    write(target, command="promote")
    once(target, "apply", lambda: write(target), after=True)
    ticking = runner(target)
    for _ in range(3):
        ticking.tick(KEY)
        target.pass_time(10.0)
    assert (current(target).weight, current(target).command) == (40, "")


@pytest.mark.parametrize("command", ["pause", "abort"])
def test_another_command_than_the_one_that_is_being_fulfilled_is_kept(command: str) -> None:
    target = many_steps()
    write(target, command="promote")
    once(target, "apply", lambda: write(target, command=command), after=True)
    runner(target).tick(KEY)
    assert (current(target).weight, current(target).command) == (40, command)


def test_a_policy_that_comes_in_the_middle_of_a_tick_is_not_lost() -> None:
    target = ready_to_promote()
    slower = replace(POLICY, keep_stable_s=3600.0)
    once(target, "apply", lambda: write(target, policy=slower), after=True)
    runner(target).tick(KEY)
    assert (current(target).weight, current(target).policy) == (100, slower)


def test_time_of_a_tick_that_failed_counts_in_the_next() -> None:
    target = many_steps()
    ticking = runner(target)
    ticking.tick(KEY)
    before: Canary = current(target)
    target.pass_time(10.0)
    status = target.status

    def away(*_: object) -> object:
        raise Conflict("always")

    target.status = away  # type: ignore[assignment,method-assign]
    with pytest.raises(Conflict):
        ticking.tick(KEY)
    target.status = status  # type: ignore[method-assign]
    target.pass_time(10.0)
    ticking.tick(KEY)
    assert current(target).elapsed_s == before.elapsed_s + 20.0


def test_a_command_is_written_over_what_a_runner_writes_meanwhile() -> None:
    target = many_steps()
    once(target, "save_canary", lambda: write(target, elapsed_s=7.0))
    follow.request_action(target, KEY, "abort")
    assert (current(target).command, current(target).elapsed_s) == ("abort", 7.0)


def test_who_never_comes_first_is_told_so() -> None:
    target = many_steps()

    def refuse(*_: object) -> CanaryRecord:
        raise Conflict("another was first")

    target.save_canary = refuse  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="keeps changing"):
        follow.request_action(target, KEY, "abort")
