"""Readiness as a decision, and the phases of a cold start."""

import pytest

from pilotlight_predictor.bootstrap.startup import seconds_since_exec
from pilotlight_predictor.server.server_state import Lifecycle, ServerState, assess_readiness


def verdict(lifecycle: Lifecycle, *required: str, ready: str = "", may_be_empty: bool = False) -> tuple[bool, str, str]:
    found = assess_readiness(
        lifecycle, required, lambda name: name in ready, lambda name: "why", may_be_empty=may_be_empty
    )
    return tuple(found)  # type: ignore[return-value]


def in_state(state: ServerState, reason: str = "") -> Lifecycle:
    lifecycle = Lifecycle(0.0, 0.0)
    lifecycle.move(state, reason)
    return lifecycle


@pytest.mark.parametrize("state", [s for s in ServerState if s is not ServerState.READY])
def test_in_every_other_state_it_is_not_ready_and_says_which(state: ServerState) -> None:
    assert verdict(in_state(state, "a reason"), "a", ready="a") == (False, state.value, "a reason")


def test_ready_is_when_every_required_model_is() -> None:
    ready = in_state(ServerState.READY)
    assert verdict(ready, "a", "b", ready="ab") == (True, "ready", "")
    assert verdict(ready, "a", "b", ready="a") == (False, "failed", "model 'b': why")


def test_no_model_at_all_is_ready_only_where_they_come_by_call() -> None:
    ready = in_state(ServerState.READY)
    assert verdict(ready) == (False, "failed", "no model found")
    assert verdict(ready, may_be_empty=True) == (True, "ready", "")


def test_a_server_that_stops_stays_stopping_whatever_loads_still_end() -> None:
    lifecycle = in_state(ServerState.STOPPING)
    lifecycle.move(ServerState.READY)
    assert lifecycle.state is ServerState.STOPPING


def test_the_phases_are_those_of_the_slowest_model_and_the_fetch_of_all() -> None:
    lifecycle = Lifecycle(100.0, 100.5)
    lifecycle.finish_phase("listen", 101.5)
    lifecycle.finish_phase("import", 104.0)
    quick = {"import": 0.1, "load": 0.1, "warmup": 0.1, "total": 0.3}
    slow = {"import": 1.0, "load": 2.0, "warmup": 3.0, "total": 6.0}
    lifecycle.record_loads(4.0, 1.5, [quick, slow], 120.0)
    assert list(lifecycle.phases) == ["boot", "listen", "import", "fetch", "load", "warmup", "total"]
    assert list(lifecycle.phases.values()) == [0.5, 1.0, 2.5 + 1.5, 4.0, 2.0, 3.0, 20.0]


def test_a_start_without_models_has_phases_too() -> None:
    lifecycle = Lifecycle(0.0, 0.0)
    lifecycle.record_loads(0.1, 0.0, [], 1.0)
    assert lifecycle.phases["load"] == 0.0


def test_the_age_of_this_process_is_known() -> None:
    assert 0 < seconds_since_exec() < 24 * 3600
