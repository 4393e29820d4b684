"""Decides which waiting requests go into the next batch, and when: Triton's dynamic batching as a pure function.

A request starts a batch and others join it in order; none is ever split. The best stop is the last point at which a
preferred size was met exactly, or else the point beyond which the batch would pass every preferred size. It is taken
while the oldest request is younger than the delay, and always when there is no delay; after the delay as much goes as
fits. Worked example, preferred {4, 8}, at most 16, delay 100 µs:

    waiting rows 3 1 2    at 10 µs: 3 1 go, they make exactly 4      at 100 µs: all three go
    waiting rows 3 7      at 10 µs: 3 goes, with 7 it passes 8        at 100 µs: both go
    waiting rows 3        at 10 µs: waits 90 µs                       at 100 µs: goes
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

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


class BatchPolicy(Struct, frozen=True):
    """`max_rows` 0 is a model without batching: every request runs alone. `target` is the size worth waiting for.

    From `enough` rows on, all go at once; 0 leaves that to the preferred sizes.
    """

    max_rows: int = 0
    preferred: frozenset[int] = frozenset()
    delay_ns: int = 0
    enough: int = 0
    target: int = 0  # follows from the others, whatever is given

    def __post_init__(self) -> None:
        force_setattr(self, "target", max(self.preferred, default=self.max_rows))


def policy_of(max_batch_size: int, batching: DynamicBatching | None) -> BatchPolicy:
    if max_batch_size <= 0 or batching is None:
        return BatchPolicy()
    return BatchPolicy(max_batch_size, frozenset(batching.preferred_batch_size), batching.max_queue_delay_us * 1000)


def next_batch(queue: Iterable[Waiting], policy: BatchPolicy, now_ns: int) -> Decision:
    """How many of the first go together now; the module's docstring has the rules."""
    rows = count = stop = oldest_ns = 0
    signature, full = None, False
    for item in queue:
        joined = rows + item.rows
        if count == 0:
            if policy.max_rows == 0:
                return Decision(take=1)
            signature, oldest_ns = item.signature, item.enqueued_ns
        else:
            if joined > policy.target and stop == 0:
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


def signature_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, ...]:
    """Requests may share a batch when their signatures are equal: same inputs, same shapes behind the batch dim."""
    return tuple((name, shape[1:]) for name, shape in shapes.items())
