"""The queue of one model: priority levels, bounds, time-outs. The clock comes in as an argument.

Cancelled and expired requests are skipped lazily, and swept out once they outnumber those that still wait: leaving
costs little, and what left holds its tensors no longer than that.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec

from pilotlight_predictor.batch import Shares
from pilotlight_predictor.errors import BadRequest, QueueFull
from pilotlight_predictor.inference import InferRequest, Outputs
from pilotlight_predictor.repository.model_config import DynamicBatching, QueuePolicy

SWEEP_ABOVE: Final = 16  # with so few left behind, a sweep would cost more than it frees


class Together(Protocol):
    """Whoever asked for many items, and answers those of a batch at once for less than one by one."""

    def answer(self, batch: "list[Item]", shares: Shares) -> bool:
        """False where each item is to be answered by itself; then nothing has happened. Does not raise."""

    def answer_one(self, item: "Item", answer: Outputs | Exception) -> None: ...
    def leave(self, item: "Item") -> None:
        """Whoever asked has gone."""


class Item(msgspec.Struct, eq=False):
    """One request on its way through the scheduler. It is answered exactly once, on the event loop: through `done`, or
    where that is None by its `together`, which finds in `asker` who asked."""

    request: InferRequest
    done: Callable[[Outputs | Exception], None] | None
    rows: int = 1
    signature: Any = None
    enqueued_ns: int = 0
    expires_ns: int = 0  # 0: may wait for ever
    level: int = 0
    delayed: bool = False  # its time passed under DELAY: served after all that are in time
    gone: bool = False  # answered or cancelled; whoever meets it in a queue drops it
    part: Callable[[Outputs | Exception, bool], None] | None = None  # of a decoupled model: takes answers once begun
    asker: Any = None
    together: Together | None = None

    def answer(self, answer: Outputs | Exception) -> None:
        if self.done is not None:
            self.done(answer)
        elif self.together is not None:
            self.together.answer_one(self, answer)

    def leave(self) -> None:
        if self.together is not None:
            self.together.leave(self)


class Level(msgspec.Struct, eq=False):
    """Requests of one priority, in the order in which they came."""

    policy: QueuePolicy
    bound: int  # of its size; 0: none
    items: deque[Item] = msgspec.field(default_factory=deque)
    delayed: deque[Item] = msgspec.field(default_factory=deque)
    size: int = 0  # live items only

    def sweep(self) -> None:
        self.items = deque(item for item in self.items if not item.gone)
        self.delayed = deque(item for item in self.delayed if not item.gone)


class WaitingLine:
    """Items in the order in which they may run: by level, in time before late, first come first served."""

    def __init__(self, batching: DynamicBatching | None, default_bound: int) -> None:
        batching = batching or DynamicBatching()
        self.priorities = batching.priority_levels
        self._default_level = batching.default_priority_level
        numbers = range(1, batching.priority_levels + 1) if batching.priority_levels else (0,)
        policies = {number: batching.policy(number) for number in numbers}
        self._levels = {n: Level(policy, policy.max_queue_size or default_bound) for n, policy in policies.items()}
        self.size = 0
        self._next_expiry_ns = 0  # no waiting item expires before this; 0: none ever does, as in most models

    def push(self, item: Item, now_ns: int) -> None:
        if self.priorities:
            item.level = self._level_number(item.request.priority)
        level = self._levels[item.level]
        if level.size >= level.bound > 0:
            raise QueueFull(f"Exceeds maximum queue size: {level.size} requests wait for model '{item.request.model}'")
        item.enqueued_ns = item.enqueued_ns or now_ns  # one of a sequence has waited before it came here
        if level.policy.default_timeout_us or item.request.timeout_us:
            timeout_us = _timeout_us(level.policy, item.request.timeout_us)
            item.expires_ns = item.enqueued_ns + timeout_us * 1000
            self._next_expiry_ns = min(item.expires_ns, self._next_expiry_ns or item.expires_ns)
        level.items.append(item)
        level.size += 1
        self.size += 1

    def _level_number(self, priority: int) -> int:
        if priority > self.priorities:
            raise BadRequest(f"parameters.priority = {priority}, must be at most the model's {self.priorities} levels")
        return priority or self._default_level

    def __iter__(self) -> Iterator[Item]:
        first = next(iter(self._levels.values()))
        if first.size == self.size == len(first.items):  # as in most models: one level, and nobody has left it
            return iter(first.items)
        return self._live()

    def _live(self) -> Iterator[Item]:
        for level in self._levels.values():
            for item in level.items:
                if not item.gone:
                    yield item
            for item in level.delayed:
                if not item.gone:
                    yield item

    def take(self, count: int) -> list[Item]:
        taken: list[Item] = []
        for level in self._levels.values():
            for queue in (level.items, level.delayed):
                while queue and len(taken) < count:
                    item = queue.popleft()
                    if not item.gone:
                        level.size -= 1
                        taken.append(item)
        self.size -= len(taken)
        return taken

    def leave(self, item: Item) -> None:
        """The item is gone (cancelled): it counts no more and is dropped when met, or swept out with others."""
        level = self._levels[item.level]
        level.size -= 1
        self.size -= 1
        item.gone = True
        if len(level.items) + len(level.delayed) > 2 * level.size + SWEEP_ABOVE:
            level.sweep()

    def expire(self, now_ns: int) -> list[Item]:
        """Those whose time has passed: rejected ones are returned, delayed ones move behind the rest of their level."""
        rejected: list[Item] = []
        if not self._next_expiry_ns or now_ns < self._next_expiry_ns:
            return rejected
        for level in self._levels.values():
            late = [i for i in level.items if not i.gone and i.expires_ns and i.expires_ns <= now_ns]
            if not late:
                continue
            if level.policy.timeout_action == "DELAY":
                for item in late:
                    item.delayed = True
                level.delayed.extend(late)
                level.items = deque(i for i in level.items if not i.delayed and not i.gone)
            else:
                for item in late:
                    self.leave(item)
                rejected.extend(late)
        self._next_expiry_ns = self._earliest()
        return rejected

    def _earliest(self) -> int:
        times = (i.expires_ns for level in self._levels.values() for i in level.items if i.expires_ns and not i.gone)
        return min(times, default=0)

    def next_expiry(self) -> int | None:
        """When to call `expire` again at the latest: no waiting item's time passes before."""
        return self._next_expiry_ns or None

    def clear(self) -> list[Item]:
        return self.take(self.size)


def _timeout_us(policy: QueuePolicy, asked_us: int) -> int:
    """A client may shorten the model's time-out where that is allowed, and set one where the model has none."""
    if asked_us and (
        policy.default_timeout_us == 0 or (policy.allow_timeout_override and asked_us < policy.default_timeout_us)
    ):
        return asked_us
    return policy.default_timeout_us
