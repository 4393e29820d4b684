"""Whoever waits for a canary: sees its own to its end, runs it where nobody does, and outlasts troubles and pauses."""

import pytest
from msgspec.structs import replace
from tests.platform.canaries.runner.conftest import KEY, iris
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import current, runner, started, try_another

from pilotlight.canaries import next_action, stored_history
from pilotlight.errors import NotFound, PlatformError, TimedOut
from platformctl.canary.follow import MAX_RETRIES, CanaryFollower, follow
from platformctl.output import ProgressLog


def waiting(target: PaperTarget, paused_s: float = 60.0) -> CanaryFollower:
    return CanaryFollower(target, KEY, current(target), paused_s, target.clock, target.pass_time)


def test_it_is_run_where_nobody_else_does(capsys: pytest.CaptureFixture[str]) -> None:
    target = started()
    assert waiting(target).poll().weight == 20
    assert "this command runs the canary" in capsys.readouterr().err


def test_it_is_only_looked_at_where_somebody_else_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    target = started()
    held = replace(current(target), holder="another", renewed_at="2999-01-01T00:00:00Z")
    target.save_canary(
        KEY,
        stored_history.encode_history(replace(stored_history.decode_history(target.kept[KEY]), current=held)),
        "1",
    )
    assert waiting(target).poll().weight == 0
    assert "this command runs" not in capsys.readouterr().err


def test_another_that_takes_its_place_is_not_mistaken_for_it() -> None:
    target = started()
    waits = waiting(target)
    mine = waits.poll().revision
    target.pass_time(1.0)
    try_another(target, iris(most=5))
    assert (waits.poll().revision, waits.poll().phase) == (mine, "Superseded")


def test_a_pause_is_waited_for_as_long_as_asked() -> None:
    target = started()
    waits = waiting(target, paused_s=30.0)
    paused = replace(current(target), phase="Paused", reason="too few requests")
    target.save_canary(
        KEY,
        stored_history.encode_history(replace(stored_history.decode_history(target.kept[KEY]), current=paused)),
        "1",
    )
    assert waits.poll().phase == "Paused"
    target.pass_time(31.0)
    with pytest.raises(TimedOut, match="paused: too few requests"):
        waits.poll()


def paused(target: PaperTarget, reason: str) -> PaperTarget:
    found = replace(current(target), phase="Paused", reason=reason, weight=20)
    held = replace(found, holder="another", renewed_at="2999-01-01T00:00:00Z")
    target.save_canary(
        KEY,
        stored_history.encode_history(replace(stored_history.decode_history(target.kept[KEY]), current=held)),
        "1",
    )
    return target


def test_who_started_it_is_told_at_once_when_it_pauses_itself(capsys: pytest.CaptureFixture[str]) -> None:
    target = paused(started(), "4 measurements in a row failed")
    with pytest.raises(PlatformError, match="has paused itself at 20 %: 4 measurements in a row") as caught:
        follow(target, KEY, ProgressLog(), 600.0, wait_through_pauses=False)
    assert caught.value.exit_code == 1
    assert caught.value.hint == "platformctl canary resume iris --target paper, or promote, or abort"
    assert "waiting" not in capsys.readouterr().err


def test_one_that_has_proved_all_and_asks_to_be_promoted_has_not_failed(capsys: pytest.CaptureFixture[str]) -> None:
    target = paused(started(), next_action.AWAITING_PROMOTION)
    assert follow(target, KEY, ProgressLog(), 600.0, wait_through_pauses=False).phase == "Paused"
    printed = capsys.readouterr().err
    assert "paused at 20 % until you continue: platformctl canary promote iris --target paper, or abort" in printed
    assert "waiting" not in printed


@pytest.mark.parametrize(("reason", "patient"), [(next_action.PAUSED_MANUALLY, False), ("too few requests", True)])
def test_a_pause_that_somebody_knows_of_is_waited_for_and_told(
    reason: str, patient: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TimedOut, match=f"paused: {reason}"):
        follow(paused(started(), reason), KEY, ProgressLog(), 0.0, wait_through_pauses=patient)
    assert "for it to continue: platformctl canary resume iris --target paper" in capsys.readouterr().err


def test_troubles_are_told_and_outlasted_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    target = started()
    waits, there = waiting(target), target.canary

    def away(key: object) -> None:
        raise PlatformError("the cluster does not answer")

    target.canary = away  # type: ignore[assignment,method-assign]
    for _ in range(MAX_RETRIES):
        assert waits.poll().weight == 0, "as it was last seen"
    assert "the cluster does not answer" in capsys.readouterr().err
    target.canary = there  # type: ignore[method-assign]
    assert waits.poll().weight == 20
    target.canary = away  # type: ignore[assignment,method-assign]
    for _ in range(MAX_RETRIES):
        waits.poll()
    with pytest.raises(PlatformError, match="does not answer"):
        waits.poll()


def test_one_that_is_forgotten_is_named() -> None:
    target = started()
    waits = waiting(target)
    target.kept.clear()
    with pytest.raises(NotFound, match="no canary of default/iris runs"):
        waits.poll()


def test_who_leaves_hands_it_on() -> None:
    target = started()
    waits = waiting(target)
    waits.poll()
    assert current(target).holder
    waits.release()
    assert runner(target, "next").tick(KEY) is not None
