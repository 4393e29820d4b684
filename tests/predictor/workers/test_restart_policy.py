"""Who accepts from which socket, when a dead worker comes again, what a newcomer has to load."""

import pytest

from pilotlight_predictor.workers.supervisor_policy import assign_sockets, missing_models, wait_before_restart


@pytest.mark.parametrize(
    ("ready", "alive", "given"),
    [
        ([0, 1, 2], [0, 1, 2], {0: [0], 1: [1], 2: [2]}),
        ([], [0, 1, 2], {0: [0, 1, 2], 1: [], 2: []}),  # the lowest says why nobody is ready
        ([1], [0, 1, 2], {0: [], 1: [0, 1, 2], 2: []}),
        ([0, 2], [0, 2], {0: [0], 2: [1, 2]}),
        ([], [1], {1: [0, 1, 2]}),
        ([], [], {}),
    ],
)  # fmt: skip
def test_every_socket_has_somebody_who_can_answer(
    ready: list[int], alive: list[int], given: dict[int, list[int]]
) -> None:
    assert assign_sockets(3, ready, alive) == given


def test_who_dies_again_waits_longer_and_who_lived_for_a_minute_starts_over() -> None:
    deaths, waits = 0, []
    for _ in range(12):
        deaths, wait_s = wait_before_restart(deaths, lived_s=1.0)
        waits.append(wait_s)
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits[-1] == 30.0
    assert wait_before_restart(deaths, lived_s=61.0) == (1, 0.1)


def test_a_newcomer_loads_what_the_others_have_and_unloads_what_they_have_not() -> None:
    assert missing_models({"a", "b"}, {"b", "c"}, {}) == (("c",), ("a",))


def test_what_was_loaded_by_call_is_loaded_again_since_its_configuration_may_differ() -> None:
    assert missing_models({"a", "b"}, {"a", "b"}, {"a": b"{}"}) == (("a",), ())


def test_when_all_died_the_calls_tell_what_was_served() -> None:
    assert missing_models({"a", "b"}, None, {"c": b"", "b": None}) == (("c",), ("b",))
