"""Dynamic batching as in Triton: which queued requests form the next batch, and when. Pure.

A batch takes requests in queue order and splits none. The preferred stop is the last point at which a preferred size
was met exactly, else the point beyond which the batch would exceed every preferred size. It is used while the oldest
request is younger than the delay, and always without a delay; after the delay the batch takes as much as fits.
Example, preferred {4, 8}, maximum 16, delay 100 µs:

    queued rows 3 1 2    at 10 µs: 3 1, exactly 4 rows               at 100 µs: all three
    queued rows 3 7      at 10 µs: 3, because with 7 it exceeds 8     at 100 µs: both
    queued rows 3        at 10 µs: wait 90 µs                         at 100 µs: 3
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from pilotlight_predictor.repository.model_config import DynamicBatching


class Waiting(Protocol):
    """A queued request, as far as the decision needs it."""

    rows: int
    signature: Any
    enqueued_ns: int


class Decision(NamedTuple):
    """Take the first `take` requests now, or decide again after `wait_ns` (None: when the queue changes)."""

    take: int = 0
    wait_ns: int | None = None


class BatchPolicy(Struct, frozen=True):
    """Batching of one model. `max_rows` 0: every request runs alone. `target`: the size worth waiting for.

    From `enough` rows on the batch starts without delay; 0: from `target` on.
    """

    max_rows: int = 0
    preferred: frozenset[int] = frozenset()
    delay_ns: int = 0
    enough: int = 0
    target: int = 0  # always derived from the others

    def __post_init__(self) -> None:
        force_setattr(self, "target", max(self.preferred, default=self.max_rows))


def policy_of(max_batch_size: int, batching: DynamicBatching | None) -> BatchPolicy:
    if max_batch_size <= 0 or batching is None:
        return BatchPolicy()
    return BatchPolicy(max_batch_size, frozenset(batching.preferred_batch_size), batching.max_queue_delay_us * 1000)


def next_batch(queue: Iterable[Waiting], policy: BatchPolicy, now_ns: int) -> Decision:
    """Return how many requests from the head of the queue to run now, by the rules of the module's docstring."""
    rows = count = stop = oldest_ns = 0
    signature, full = None, False
    for item in queue:
        joined = rows + item.rows
        if count == 0:
            if policy.max_rows == 0:
                return Decision(take=1)
            signature, oldest_ns = item.signature, item.enqueued_ns
        else:
            if joined > policy.target and stop == 0:  # no preferred size was met: stop before exceeding them all
                stop = count
            if joined > policy.max_rows or item.signature != signature:
                full = True
                break
            if item.enqueued_ns < oldest_ns:
                oldest_ns = item.enqueued_ns
        rows = joined
        count += 1
        if rows in policy.preferred:
            stop = count
    if count == 0:
        return Decision()
    age_ns = now_ns - oldest_ns
    late = age_ns >= policy.delay_ns
    if stop and not (late and policy.delay_ns):
        return Decision(take=stop)
    if full or late or rows >= (policy.enough or policy.target):
        return Decision(take=count)
    return Decision(wait_ns=policy.delay_ns - age_ns)


def affordable(sizes: Iterable[int], left: int) -> tuple[int, int]:
    """Return how many requests from the head of a batch fit `left` bytes of memory, at least one, and their size."""
    count = size = 0
    for total in accumulate(sizes):
        if count and total > left:
            break
        count, size = count + 1, total
    return count, size


def signature_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, ...]:
    """Requests may share a batch if their signatures are equal: same inputs, same shapes after the batch dimension."""
    return tuple((name, shape[1:]) for name, shape in shapes.items())
