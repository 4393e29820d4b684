"""Who is idle, and whether the host has room: decided without a clock, a machine or a model."""

import pytest

from pilotlight_predictor.core.activity import Activity, is_idle, observe_activity, poll_interval_s
from pilotlight_predictor.models.parking.policy import HostCopy, budget_bytes, copies_to_drop

GB = 10**9


def test_a_model_is_idle_since_its_count_last_changed() -> None:
    seen = observe_activity(None, 5, False, 100.0)
    for now in (110.0, 120.0):
        seen = observe_activity(seen, 5, False, now)
    assert seen == Activity(5, 100.0)
    assert not is_idle(seen, 30, 129.9)
    assert is_idle(seen, 30, 130.0)
    assert observe_activity(seen, 6, False, 140.0) == Activity(6, 140.0)


def test_a_request_that_takes_long_keeps_its_model_from_being_idle() -> None:
    seen = observe_activity(Activity(5, 100.0), 5, True, 400.0)
    assert not is_idle(seen, 30, 400.0)


@pytest.mark.parametrize(("after", "pause"), [(0.1, 0.05), (60, 5.0), (8, 2.0)])
def test_looks_are_neither_rare_nor_many(after: float, pause: float) -> None:
    assert poll_interval_s(after) == pause


def test_what_fits_asks_nobody_to_leave() -> None:
    assert copies_to_drop([HostCopy("a/1", 4 * GB, True, 1), HostCopy("b/1", 4 * GB, False, 2)], 2 * GB, 10 * GB) == []


def test_copies_of_awake_models_go_first_those_parked_longest_ago() -> None:
    copies = [
        HostCopy("late", 3 * GB, False, 9),
        HostCopy("parked", 3 * GB, True, 1),
        HostCopy("early", 3 * GB, False, 5),
    ]
    assert copies_to_drop(copies, 3 * GB, 10 * GB) == ["early"]
    assert copies_to_drop(copies, 6 * GB, 10 * GB) == ["early", "late"]


def test_the_copy_of_a_parked_model_is_never_given_up() -> None:
    assert copies_to_drop([HostCopy("parked", 8 * GB, True, 1), HostCopy("none", 0, False, 0)], 3 * GB, 10 * GB) is None


def test_a_model_larger_than_the_budget_has_no_room() -> None:
    assert copies_to_drop([], 3 * GB, 2 * GB) is None


def test_a_budget_is_bytes_or_a_share_and_is_shared_by_processes() -> None:
    assert budget_bytes("1000", 64 * GB, 1) == 1000
    assert budget_bytes("25%", 64 * GB, 1) == 16 * GB
    assert budget_bytes("25%", 64 * GB, 4) == 4 * GB
