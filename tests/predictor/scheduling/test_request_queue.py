"""The queue of a model: levels, bounds and time-outs, with the clock in the test's hand."""

import weakref
from typing import Any

import pytest

from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import BadRequest, QueueFull
from pilotlight_predictor.repository.model_config import DynamicBatching, QueuePolicy
from pilotlight_predictor.scheduling.queue import QueuedRequest, RequestQueue

US = 1000


def item(name: str, **fields: Any) -> QueuedRequest:
    return QueuedRequest(InferRequest("m", {}, id=name, **fields), lambda answer: None)


def names(items: object) -> list[str]:
    return [each.request.id for each in items]  # type: ignore[attr-defined]


def line(policy: QueuePolicy | None = None, bound: int = 0, **fields: object) -> RequestQueue:
    return RequestQueue(DynamicBatching(default_queue_policy=policy or QueuePolicy(), **fields), bound)  # type: ignore[arg-type]


def push(queue: RequestQueue, name: str, now_us: int = 0, **fields: int) -> QueuedRequest:
    pushed = item(name, **fields)
    queue.push(pushed, now_us * US)
    return pushed


def test_lower_levels_go_first_and_within_a_level_who_came_first() -> None:
    queue = line(priority_levels=3, default_priority_level=2)
    for name, priority in (("c", 3), ("b", 0), ("a1", 1), ("a2", 1), ("b2", 2)):
        push(queue, name, priority=priority)
    assert names(queue) == ["a1", "a2", "b", "b2", "c"]
    assert names(queue.take(3)) == ["a1", "a2", "b"]
    assert (queue.size, names(queue)) == (2, ["b2", "c"])


def test_a_priority_beyond_the_levels_is_the_clients_mistake() -> None:
    with pytest.raises(BadRequest, match="priority = 4, must be at most"):
        push(line(priority_levels=3, default_priority_level=1), "x", priority=4)


def test_a_model_without_levels_ignores_priorities() -> None:
    queue = line()
    push(queue, "a", priority=9)
    push(queue, "b", priority=1)
    assert names(queue) == ["a", "b"]


def test_a_full_queue_refuses_and_takes_again_when_someone_left() -> None:
    queue = line(QueuePolicy(max_queue_size=2))
    first = push(queue, "a")
    push(queue, "b")
    with pytest.raises(QueueFull, match="Exceeds maximum queue size"):
        push(queue, "c")
    queue.discard(first)
    push(queue, "c")
    assert names(queue.take(5)) == ["b", "c"]
    assert queue.size == 0


def test_the_servers_bound_holds_where_the_model_names_none() -> None:
    queue = line(bound=1)
    push(queue, "a")
    with pytest.raises(QueueFull):
        push(queue, "b")


def test_each_level_has_its_own_policy() -> None:
    queue = line(
        QueuePolicy(max_queue_size=1), priority_levels=2, default_priority_level=2,
        priority_queue_policy={1: QueuePolicy(max_queue_size=2, default_timeout_us=10)},
    )  # fmt: skip
    push(queue, "low")
    push(queue, "high1", priority=1)
    push(queue, "high2", priority=1)
    for priority in (1, 2):
        with pytest.raises(QueueFull):
            push(queue, "more", priority=priority)
    assert names(queue.expire(10 * US)) == ["high1", "high2"]
    assert names(queue) == ["low"]


def test_reject_takes_the_late_out_at_their_time_and_not_before() -> None:
    queue = line(QueuePolicy(default_timeout_us=100))
    push(queue, "a", 0)
    push(queue, "b", 50)
    assert queue.expire(99 * US) == []
    assert queue.next_expiry() == 100 * US
    assert names(queue.expire(100 * US)) == ["a"]
    assert (queue.next_expiry(), queue.size) == (150 * US, 1)
    assert names(queue.expire(150 * US)) == ["b"]
    assert (queue.next_expiry(), queue.size) == (None, 0)


def test_delay_moves_the_late_behind_all_that_are_in_time() -> None:
    queue = line(QueuePolicy("DELAY", default_timeout_us=100))
    push(queue, "late1", 0)
    push(queue, "late2", 0)
    push(queue, "in time", 50)
    assert queue.expire(100 * US) == []
    push(queue, "later still", 110)
    assert names(queue) == ["in time", "later still", "late1", "late2"]
    assert names(queue.take(4)) == ["in time", "later still", "late1", "late2"]


@pytest.mark.parametrize(
    ("default_us", "allowed", "asked_us", "expires_us"),
    [
        (0, False, 0, None),
        (100, False, 50, 100),  # not allowed to change it
        (100, True, 50, 50),
        (100, True, 200, 100),  # only ever shorter
        (0, False, 50, 50),  # the model has none, so the client's counts
        (0, True, 50, 50),
    ],
)
def test_whose_timeout_counts(default_us: int, allowed: bool, asked_us: int, expires_us: int | None) -> None:
    queue = line(QueuePolicy(default_timeout_us=default_us, allow_timeout_override=allowed))
    push(queue, "a", timeout_us=asked_us)
    assert queue.next_expiry() == (None if expires_us is None else expires_us * US)


def test_who_left_is_neither_counted_nor_handed_out_nor_expired() -> None:
    queue = line(QueuePolicy(default_timeout_us=100))
    gone = push(queue, "gone")
    push(queue, "stays")
    queue.discard(gone)
    assert (queue.size, names(queue)) == (1, ["stays"])
    assert names(queue.expire(100 * US)) == ["stays"]


class Body:
    """Stands for the tensors of a request, which may be of any size."""


@pytest.mark.parametrize("action", ["REJECT", "DELAY"])
def test_those_who_left_free_their_tensors_while_others_still_wait(action: Any) -> None:
    queue = line(QueuePolicy(action, default_timeout_us=100))
    push(queue, "stays")
    push(queue, "stays too")
    bodies: list[weakref.ref[Body]] = []
    for number in range(300):
        body = Body()
        bodies.append(weakref.ref(body))
        left = push(queue, "left", parameters={"body": body})  # type: ignore[arg-type]
        if number == 150:
            queue.expire(100 * US)
        if not left.gone:
            queue.discard(left)
        del body, left
    assert sum(body() is not None for body in bodies) <= 20
    assert queue.size == (0 if action == "REJECT" else 2)
    assert names(queue.take(5)) == ([] if action == "REJECT" else ["stays", "stays too"])


def test_a_time_out_that_takes_many_out_at_once_leaves_the_rest_in_order() -> None:
    queue = line(QueuePolicy(default_timeout_us=100))
    for number in range(100):
        push(queue, f"late {number}", 0)
    push(queue, "a", 50)
    push(queue, "b", 50)
    assert names(queue.expire(100 * US)) == [f"late {number}" for number in range(100)]
    assert names(queue.take(5)) == ["a", "b"]
