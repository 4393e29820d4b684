"""Metrics that say nothing: nobody asks the service, nothing is scraped, no number, nobody answers. None fails it."""

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.platform.canaries.runner.conftest import KEY
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import current, runner, started

from pilotlight.canaries import stored_history
from pilotlight.contract import METRIC_IN_FLIGHT
from pilotlight.errors import PlatformError
from pilotlight.spec.canary_policy import Check, parse_policy
from pilotlight.targets.target import Sample

TICKS = 30


def with_policy(**changes: object) -> PaperTarget:
    target = started()
    kept = target.kept[KEY]
    canary = replace(current(target), policy=replace(current(target).policy, **changes))
    target.save_canary(
        KEY,
        stored_history.encode_history(replace(stored_history.decode_history(kept), current=canary)),
        kept.version,
    )
    return target


def until_it_stops(target: PaperTarget, requests: int = 0) -> str:
    """Its phase once it neither moves nor ends."""
    ticking = runner(target)
    for _ in range(TICKS):
        target.pass_time(10.0, requests)
        ticking.tick(KEY)
        if current(target).phase != "Progressing":
            return current(target).phase
    raise AssertionError(current(target))


def unreachable(promql: str) -> Sequence[Sample]:
    raise PlatformError("Prometheus at http://nowhere cannot be asked")


def nothing(promql: str) -> Sequence[Sample]:
    return []


def no_number(promql: str) -> Sequence[Sample]:
    return [Sample({"le": "+Inf", "code": "200"}, 1.0 if METRIC_IN_FLIGHT in promql else math.nan)]


@pytest.mark.parametrize(
    ("answer", "told"),
    [(unreachable, "cannot be asked"), (nothing, "was not scraped"), (no_number, "not a number")],
    ids=["unreachable", "stale", "nan"],
)
def test_metrics_that_say_nothing_pause_it_and_say_why(answer: object, told: str) -> None:
    target = with_policy(on_no_data="pause", bake_s=120.0)
    target.asked = answer  # type: ignore[assignment]
    assert until_it_stops(target, 100) == "Paused"
    assert told in current(target).reason
    assert current(target).weight == 20, "what it has it keeps"


def test_nobody_who_asks_pauses_it_where_no_probe_can_be_sent() -> None:
    target = with_policy()
    assert until_it_stops(target) == "Paused"
    assert "too few requests" in current(target).reason


@pytest.mark.parametrize(("choice", "phase"), [("fail", "RolledBack"), ("pass", "Promoted"), ("pause", "Paused")])
def test_nobody_who_asks_is_what_the_policy_says(choice: str, phase: str) -> None:
    assert until_it_stops(with_policy(on_no_data=choice)) == phase


def test_it_goes_on_when_the_metrics_are_back() -> None:
    target = with_policy(on_no_data="pause")
    target.asked = unreachable
    assert until_it_stops(target, 100) == "Paused"
    target.asked = None
    kept = target.kept[KEY]
    command = replace(current(target), command="resume")
    target.save_canary(
        KEY, stored_history.encode_history(replace(stored_history.decode_history(kept), current=command)), kept.version
    )
    ticking = runner(target)
    for _ in range(TICKS):
        target.pass_time(10.0)
        ticking.tick(KEY)
    assert current(target).phase == "Promoted"


def test_a_query_of_the_users_own_is_filled_in_asked_and_judged() -> None:
    query = (
        'sum(max_over_time(pilotlight_request_duration_seconds_count{revision="{{revision}}",code="500"}[{{window}}]))'
    )
    policy = parse_policy({"promql": [f"refused={query}"], "max": ["refused=3"], "steps": "20,100", "bake": "10s",
                        "interval": "10s", "min-requests": 10})  # fmt: skip
    target = with_policy(checks=policy.checks)
    target.wrong[current(target).revision] = 0.5
    assert until_it_stops(target, 100) == "RolledBack"
    assert "refused" in current(target).reason
    assert current(target).revision in next(each.query for each in current(target).measurements if each.query)


def test_a_query_that_gives_several_numbers_judges_nothing() -> None:
    several = Check("each", 'max_over_time(pilotlight_request_duration_seconds_bucket{code="200"}[60s])', maximum=1.0)
    target = with_policy(checks=(several,), on_no_data="pause")
    assert until_it_stops(target, 100) == "Paused"
    assert "must return one" in current(target).reason
