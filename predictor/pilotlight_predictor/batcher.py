"""Decides which waiting requests go into the next batch, and when: Triton's dynamic batching as a pure function."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pilotlight_predictor.repository.model_config import DynamicBatching


class Waiting(Protocol):
    """What the decision needs to know of a queued request."""

    rows: int
    signature: Any
    enqueued_ns: int


class Decision(NamedTuple):
    """Take the first `take` requests now, or look again in `wait_ns` (None: when something changes)."""

    take: int = 0
    wait_ns: int | None = None


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """`max_rows` 0 is a model without batching: every request runs alone."""

    max_rows: int = 0
    preferred: frozenset[int] = frozenset()
    delay_ns: int = 0

    @property
    def largest_preferred(self) -> int:
        return max(self.preferred, default=self.max_rows)


def policy_of(max_batch_size: int, batching: DynamicBatching | None) -> BatchPolicy:
    if max_batch_size <= 0 or batching is None:
        return BatchPolicy()
    return BatchPolicy(max_batch_size, frozenset(batching.preferred_batch_size), batching.max_queue_delay_us * 1000)


def next_batch(queue: Iterable[Waiting], policy: BatchPolicy, now_ns: int) -> Decision:
    """A request starts a batch and others join it in order; none is ever split.

    Worked example, preferred {4, 8}, delay 100 µs, waiting rows 3, 1, 2: the first two make exactly 4, so while the
    oldest is younger than 100 µs they go at once and the third waits. Without a preferred size reached, the batch
    waits for the delay of its oldest request to pass.
    """
    rows = count = preferred_count = 0
    signature = oldest_ns = None
    full = False
    for item in queue:
        if count == 0:
            if policy.max_rows == 0:
                return Decision(take=1)
            signature, oldest_ns = item.signature, item.enqueued_ns
        elif item.signature != signature or rows + item.rows > policy.max_rows:
            full = True
            break
        rows += item.rows
        count += 1
        if rows in policy.preferred:
            preferred_count = count
        if rows >= policy.max_rows:
            full = True
            break
    if count == 0 or oldest_ns is None:
        return Decision()
    age = now_ns - oldest_ns
    expired = age >= policy.delay_ns
    if preferred_count and not expired:
        return Decision(take=preferred_count)
    if full or expired or rows >= policy.largest_preferred:
        return Decision(take=count)
    return Decision(wait_ns=policy.delay_ns - age)


def signature_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, ...]:
    """Requests may share a batch when their signatures are equal: same inputs, same shapes behind the batch dim."""
    return tuple((name, shape[1:]) for name, shape in shapes.items())
