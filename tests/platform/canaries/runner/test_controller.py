"""All canaries of a target: each when it is due, a command at once, and none that fails stops the others."""

import threading

import pytest
from msgspec.structs import replace
from tests.platform.canaries.runner.conftest import KEY, iris
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import current, runner, started, try_another

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import CanaryCommand
from pilotlight.canaries.controller import CanaryController, WakeEvent, run_controller
from pilotlight.errors import PlatformError
from pilotlight.targets.target import CanaryRecord


def rounds(target: PaperTarget) -> CanaryController:
    return CanaryController(target, runner(target), target.clock)


def command(target: PaperTarget, wanted: CanaryCommand) -> None:
    kept = target.kept[KEY]
    state = stored_history.encode_history(
        replace(stored_history.decode_history(kept), current=replace(current(target), command=wanted))
    )
    target.save_canary(KEY, state, kept.version)


def test_a_canary_is_looked_at_when_it_is_due() -> None:
    target = started()
    round_ = rounds(target)
    assert round_.reconcile() == 10.0
    version = target.kept[KEY].version
    target.pass_time(4.0)
    assert round_.reconcile() == 6.0
    assert target.kept[KEY].version == version, "nothing was due"
    target.pass_time(6.0)
    round_.reconcile()
    assert target.kept[KEY].version != version


def test_one_that_is_not_ready_is_looked_at_every_second() -> None:
    target = started()
    target.loading.add(current(target).revision)
    assert rounds(target).reconcile() == 1.0


def test_a_command_is_granted_at_once() -> None:
    target = started()
    round_ = rounds(target)
    round_.reconcile()
    command(target, "abort")
    assert round_.reconcile() is None
    assert current(target).phase == "RolledBack"


def test_a_command_that_must_wait_does_not_make_the_loop_spin() -> None:
    target = started()
    target.loading.add(current(target).revision)
    round_ = rounds(target)
    round_.reconcile()
    command(target, "promote-full")
    round_.reconcile()
    assert current(target).command == "promote-full", "it is not ready for that"
    version = target.kept[KEY].version
    assert round_.reconcile() == 1.0
    assert target.kept[KEY].version == version


def test_the_time_between_two_canaries_of_a_service_is_nobodys() -> None:
    """The second is started by the same process, after longer than its deadline."""
    target = started()
    round_ = rounds(target)
    while round_.reconcile() is not None:
        target.pass_time(10.0)
    assert current(target).phase == "Promoted"
    target.pass_time(2 * current(target).policy.deadline_s)
    try_another(target, iris(most=5))
    round_.reconcile()
    assert (current(target).phase, current(target).elapsed_s) == ("Progressing", 0.0), current(target).reason
    while round_.reconcile() is not None:
        target.pass_time(10.0)
    assert current(target).phase == "Promoted", current(target).reason


def test_without_canaries_nothing_is_due() -> None:
    assert rounds(PaperTarget()).reconcile() is None


def test_one_that_cannot_be_read_or_looked_after_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    target = started()
    broken = CanaryRecord("default", "other", '{"current": 7}', "1")
    gone = replace(target.kept[KEY], name="gone")
    target.kept = {("default", "other"): broken, ("default", "gone"): gone, **target.kept}
    releases = target.releases

    def asked(key: tuple[str, str]) -> object:
        if key[1] == "gone":
            raise PlatformError("there is no such service")
        return releases(key)

    target.releases = asked  # type: ignore[assignment,method-assign]
    assert rounds(target).reconcile() == 10.0
    assert current(target).weight == 20
    assert "default/other cannot be read" in caplog.text
    assert "default/gone: there is no such service" in caplog.text


def test_the_loop_ends_when_it_is_told_to() -> None:
    bell, target = WakeEvent(notified=True), PaperTarget()
    thread = threading.Thread(target=run_controller, args=(target, bell))
    thread.start()
    bell.stop()
    thread.join(30)
    assert not thread.is_alive()
