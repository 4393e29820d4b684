"""What slows both sides down is nobody's fault: a whole canary over a target's real queries."""

from tests.platform.canaries.runner.conftest import KEY
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import current, runner
from tests.platform.canaries.runner.test_no_data import with_policy

from pilotlight.spec.canary_policy import parse_policy

POLICY = parse_policy({"steps": "5,50,100", "bake": "40s", "interval": "10s", "compare": "baseline", "min-requests": 10,
                    "keep-stable": "10s"})  # fmt: skip


def followed(target: PaperTarget, slowed: set[str]) -> str:
    """Its end; from the second share on the answers of those revisions take five times as long."""
    ticking = runner(target)
    for _ in range(60):
        if current(target).weight >= 50:
            target.slow = dict.fromkeys(slowed, 0.05)
        target.pass_time(10.0, 400)
        ticking.tick(KEY)
        if current(target).phase != "Progressing":
            break
    return current(target).phase


def test_a_canary_is_promoted_though_both_sides_become_slow() -> None:
    target = with_policy(**{name: getattr(POLICY, name) for name in POLICY.__struct_fields__})
    assert followed(target, {current(target).revision, current(target).stable}) == "Promoted", current(target).reason


def test_a_canary_is_rolled_back_when_it_alone_becomes_slow() -> None:
    target = with_policy(**{name: getattr(POLICY, name) for name in POLICY.__struct_fields__})
    assert followed(target, {current(target).revision}) == "RolledBack"
    shown = next(each for each in current(target).measurements if each.check == "p50_ms vs baseline" and each.value)
    assert "[90s]" not in shown.query, "shown is what was compared"


def test_a_share_of_a_moment_ago_is_not_taken_for_one_that_nobody_asks() -> None:
    target = with_policy(compare="baseline", checks=(), bake_s=1.0, interval_s=1.0, on_no_data="fail")
    ticking = runner(target)
    for _ in range(5):
        target.pass_time(1.0, 0)
        ticking.tick(KEY)
    assert (current(target).phase, current(target).weight) == ("Progressing", 20)
    assert "too short a time" in current(target).reason
