"""A revision that has served before is tried again: only what it does as a canary counts, not what it did then."""

from collections.abc import Sequence

import pytest
from tests.platform.canaries.runner.conftest import KEY, iris
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import current, runner, try_another, wanted

from pilotlight.canaries.runner import apply_release
from pilotlight.targets.target import Sample

FIRST, SECOND = iris(), iris(most=2)


def tried_again() -> PaperTarget:
    """The first revision served many requests well, the second was promoted, and a moment later the first is back."""
    target = PaperTarget()
    apply_release(target, wanted(FIRST))
    target.pass_time(30.0, 2000)
    try_another(target, SECOND)
    assert followed(target, 100) == "Promoted"
    target.pass_time(2.0, 0)
    try_another(target, FIRST)
    return target


def followed(target: PaperTarget, requests: int) -> str:
    ticking = runner(target)
    for _ in range(60):
        ticking.tick(KEY)
        if current(target).phase != "Progressing":
            break
        target.pass_time(5.0, requests)
    return current(target).phase


@pytest.mark.parametrize("scraped", [True, False])
def test_what_fails_now_is_rolled_back_whatever_it_did_before(scraped: bool) -> None:
    target = tried_again()
    if not scraped:
        target.forget_metrics()
    target.wrong[current(target).revision] = 1.0
    assert followed(target, 100) == "RolledBack"
    counted = [each.requests for each in current(target).measurements]
    assert max(counted) <= 100, "not one of before"
    assert current(target).weight == 0


def test_without_a_request_nothing_is_proved_by_earlier_ones() -> None:
    target = tried_again()
    asked: list[str] = []
    real = target.query

    def query(promql: str) -> Sequence[Sample]:
        asked.append(promql)
        return real(promql)

    target.query = query  # type: ignore[method-assign]
    assert followed(target, 0) == "Paused", current(target)
    assert asked
    assert not any(each.requests for each in current(target).measurements)
