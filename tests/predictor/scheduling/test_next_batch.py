"""The batcher's decision against Triton's rules, case by case and by properties."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotlight_predictor.repository.model_config import DynamicBatching
from pilotlight_predictor.scheduling.batching import BatchPolicy, Decision, next_batch, policy_of, signature_of

US = 1000


@dataclass
class Waits:
    rows: int
    signature: Any = None
    enqueued_ns: int = 0


def decide(
    rows: list[int], age_us: int, *, most: int = 16, preferred: tuple[int, ...] = (), delay_us: int = 0
) -> Decision:
    policy = BatchPolicy(most, frozenset(preferred), delay_us * US)
    return next_batch([Waits(r) for r in rows], policy, age_us * US)


@pytest.mark.parametrize(
    ("rows", "age_us", "settings", "expected"),
    [
        # Nothing waits; no batching: one by one.
        ([], 0, {}, Decision()),
        ([1, 1, 1], 0, {"most": 0}, Decision(take=1)),
        # No preferred sizes, no delay: all that fits goes at once.
        ([1, 1, 1], 0, {}, Decision(take=3)),
        ([8, 8, 1], 0, {}, Decision(take=2)),
        ([10, 10], 0, {}, Decision(take=1)),
        # No preferred sizes, a delay: the target is the largest batch.
        ([1, 1], 40, {"delay_us": 100}, Decision(wait_ns=60 * US)),
        ([1, 1], 100, {"delay_us": 100}, Decision(take=2)),
        ([8, 8], 0, {"delay_us": 100}, Decision(take=2)),
        ([8, 9], 0, {"delay_us": 100}, Decision(take=1)),
        # A preferred size met exactly goes at once, the largest such first.
        ([3, 1, 2], 10, {"preferred": (4, 8), "delay_us": 100}, Decision(take=2)),
        ([4, 4, 1], 10, {"preferred": (4, 8), "delay_us": 100}, Decision(take=2)),
        ([2, 2, 2], 10, {"preferred": (4,), "delay_us": 100}, Decision(take=2)),
        # After the delay as much goes as fits.
        ([3, 1, 2], 100, {"preferred": (4, 8), "delay_us": 100}, Decision(take=3)),
        ([4, 4, 9], 100, {"preferred": (4,), "delay_us": 100}, Decision(take=2)),
        # No preferred size can be met exactly: stop before passing all of them.
        ([3, 7], 10, {"preferred": (4, 8), "delay_us": 100}, Decision(take=1)),
        ([3, 7], 100, {"preferred": (4, 8), "delay_us": 100}, Decision(take=2)),
        ([9], 10, {"preferred": (4, 8), "delay_us": 100}, Decision(take=1)),
        # Between two preferred sizes it waits for the larger.
        ([3, 2], 10, {"preferred": (4, 8), "delay_us": 100}, Decision(wait_ns=90 * US)),
        ([3], 10, {"preferred": (4, 8), "delay_us": 100}, Decision(wait_ns=90 * US)),
        # Without a delay preferred sizes still cut, and less than one never waits.
        ([1, 1, 1, 1, 1, 1], 0, {"preferred": (4,)}, Decision(take=4)),
        ([1, 1], 0, {"preferred": (4,)}, Decision(take=2)),
        ([1, 1], 10_000, {"preferred": (4,)}, Decision(take=2)),
    ],
)  # fmt: skip
def test_the_batch_follows_the_rules(rows: list[int], age_us: int, settings: Any, expected: Decision) -> None:
    assert decide(rows, age_us, **settings) == expected


def test_a_request_of_another_shape_sends_what_came_before_it_now() -> None:
    queue = [Waits(1, "a"), Waits(1, "a"), Waits(1, "b"), Waits(1, "a")]
    assert next_batch(queue, BatchPolicy(16, delay_ns=100 * US), 0) == Decision(take=2)


def test_the_delay_is_that_of_the_oldest_in_the_batch_wherever_it_stands() -> None:
    """With priorities the first in line need not be the oldest."""
    queue = [Waits(1, enqueued_ns=90 * US), Waits(1, enqueued_ns=0)]
    assert next_batch(queue, BatchPolicy(16, delay_ns=100 * US), 100 * US) == Decision(take=2)


def test_a_configuration_becomes_a_policy_and_none_means_one_by_one() -> None:
    batching = DynamicBatching(preferred_batch_size=(4, 8), max_queue_delay_us=100)
    assert policy_of(16, batching) == BatchPolicy(16, frozenset({4, 8}), 100 * US)
    assert policy_of(16, None).max_rows == policy_of(0, batching).max_rows == 0


def test_requests_share_a_batch_when_all_but_the_first_dimension_agree() -> None:
    assert signature_of({"x": (3, 4, 5)}) == signature_of({"x": (1, 4, 5)})
    assert signature_of({"x": (3, 4, 5)}) != signature_of({"x": (3, 5, 4)})


queues = st.lists(
    st.builds(Waits, rows=st.integers(1, 8), signature=st.sampled_from("ab"), enqueued_ns=st.integers(0, 300)),
    max_size=12,
)
policies = st.builds(
    BatchPolicy,
    max_rows=st.just(8),
    preferred=st.frozensets(st.integers(1, 8), max_size=3),
    delay_ns=st.sampled_from([0, 100, 200]),
)


@given(queues, policies, st.integers(300, 600))
def test_no_batch_is_too_large_or_mixes_shapes(queue: list[Waits], policy: BatchPolicy, now: int) -> None:
    taken = queue[: next_batch(queue, policy, now).take]
    assert sum(item.rows for item in taken) <= policy.max_rows
    assert len({item.signature for item in taken}) <= 1


@given(queues, policies)
def test_everything_leaves_in_order_and_nothing_waits_longer_than_the_delay(
    queue: list[Waits], policy: BatchPolicy
) -> None:
    now, left = 300, list(queue)
    sent: list[Waits] = []
    while left:
        take, wait_ns = next_batch(left, policy, now)
        assert bool(take) != bool(wait_ns), "it either goes or says when to look again"
        assert wait_ns is None or now + wait_ns <= left[0].enqueued_ns + policy.delay_ns
        sent, left, now = sent + left[:take], left[take:], now + (wait_ns or 0)
    assert sent == queue
