"""Who has which slot, decided without a clock or a server."""

import pytest

from pilotlight_predictor.core.requests import InferRequest, SequencePoint
from pilotlight_predictor.errors import BadRequest, QueueFull
from pilotlight_predictor.scheduling.queue import QueuedRequest
from pilotlight_predictor.scheduling.sequence_slots import SequenceRun, SequenceTable, Slot

IDLE_NS = 1000


def table(slots: int = 1, instances: int = 1, bound: int = 0) -> SequenceTable:
    places = (Slot(number, index) for number in range(slots) for index in range(instances))
    return SequenceTable(places, bound, IDLE_NS)


def arrive(found: SequenceTable, identity: int, marks: str = "", now: int = 0) -> SequenceRun:
    """`marks`: s for START, e for END."""
    point = SequencePoint(identity, "s" in marks, "e" in marks)
    item = QueuedRequest(InferRequest("m", {}, id=f"{identity}{marks}", sequence=point), lambda _: None)
    return found.add(item, point, now)


def taken(found: SequenceTable, sequence: SequenceRun) -> str:
    item = found.take(sequence)
    return item.request.id if item is not None else ""


def test_sequences_spread_over_instances_before_they_share_one() -> None:
    found = table(slots=2, instances=2)
    slots = [arrive(found, identity, "s").slot for identity in range(1, 5)]
    assert slots == [Slot(0, 0), Slot(0, 1), Slot(1, 0), Slot(1, 1)]


def test_one_request_of_a_sequence_runs_at_a_time() -> None:
    found = table()
    sequence = arrive(found, 1, "s")
    arrive(found, 1)
    assert (taken(found, sequence), taken(found, sequence)) == ("1s", "")
    assert found.finished(sequence, False, 1) == [sequence]
    assert taken(found, sequence) == "1"


def test_the_backlog_is_served_in_the_order_of_first_requests() -> None:
    found = table()
    first, second, third = (arrive(found, identity, "se") for identity in (1, 2, 3))
    assert (second.slot, third.slot) == (None, None)
    found.take(first)
    assert found.finished(first, True, 1) == [second]
    found.take(second)
    assert found.finished(second, True, 2) == [third]


def test_an_id_that_is_started_behind_its_own_end_goes_to_the_end_of_the_line() -> None:
    found = table()
    first = arrive(found, 1, "se")
    arrive(found, 1, "s")
    second = arrive(found, 2, "se")
    first.state["state"] = None  # type: ignore[assignment]
    found.take(first)
    assert found.finished(first, True, 1) == [second]
    found.take(second)
    assert found.finished(second, True, 2) == [first]
    assert (taken(found, first), first.state) == ("1s", {})


def test_a_request_behind_the_end_needs_a_start() -> None:
    found = table()
    arrive(found, 1, "se")
    with pytest.raises(BadRequest, match="START flag"):
        arrive(found, 1)


def test_only_what_nobody_asked_anything_for_is_idle() -> None:
    found = table(slots=3)
    busy, queued, idle = (arrive(found, identity, "s") for identity in (1, 2, 3))
    found.take(busy)
    found.take(idle)
    found.finished(idle, False, 500)
    found.expire(500 + IDLE_NS - 1)
    assert idle.slot is not None
    assert found.next_expiry() == 500 + IDLE_NS
    found.expire(500 + IDLE_NS)
    assert (busy.slot, queued.slot, idle.slot) == (Slot(0, 0), Slot(1, 0), None)
    assert found.next_expiry() is None


def test_a_sequence_that_is_dropped_while_it_runs_keeps_its_slot_until_it_is_done() -> None:
    found = table()
    first = arrive(found, 1, "s")
    second = arrive(found, 2, "s")
    found.take(first)
    arrive(found, 1)
    assert [item.request.id for item in found.drop(first)] == ["1"]
    assert found.fill() == []
    assert found.finished(first, False, 1) == [second]
    with pytest.raises(BadRequest):
        arrive(found, 1)


def test_the_bound_spares_a_request_that_need_not_wait() -> None:
    found = table(bound=1)
    first = arrive(found, 1, "s")
    found.take(first)
    found.finished(first, False, 1)
    arrive(found, 2, "s")
    with pytest.raises(QueueFull):
        arrive(found, 3, "s")
    arrive(found, 1, "e")
    with pytest.raises(QueueFull):
        arrive(found, 2)


def test_slots_of_a_dead_instance_are_given_to_nobody() -> None:
    found = table(instances=2)
    found.remove_instance(0)
    assert arrive(found, 1, "se").slot == Slot(0, 1)
    waiting = arrive(found, 2, "s")
    assert waiting.slot is None
    assert found.backlog() == [waiting]
