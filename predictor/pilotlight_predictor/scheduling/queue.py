"""Request queue of one model version: priority levels, size limits, timeouts. The clock is an argument.

Cancelled and expired requests are skipped lazily and swept out once they outnumber the live ones: cancelling is cheap,
and a cancelled request does not hold its tensors for long.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, Protocol

import msgspec

from pilotlight_predictor.core.batch import SplitOutputs
from pilotlight_predictor.core.requests import InferRequest, Outputs
from pilotlight_predictor.errors import BadRequest, QueueFull
from pilotlight_predictor.repository.model_config import DynamicBatching, QueuePolicy

SWEEP_ABOVE: Final = 16  # with fewer cancelled requests a sweep would cost more than it frees


class BatchReply(Protocol):
    """Responder for all requests of a batch at once, which is cheaper than one by one."""

    def answer(self, batch: "list[QueuedRequest]", shares: SplitOutputs) -> bool:
        """Respond to the whole batch. False: nothing was sent, respond to each item by itself. Does not raise."""

    def answer_one(self, item: "QueuedRequest", answer: Outputs | Exception) -> None: ...
    def cancel(self, item: "QueuedRequest") -> None: ...


class QueuedRequest(msgspec.Struct, eq=False):
    """A request in the scheduler, answered exactly once, on the event loop.

    By `done`, or where that is None by its `batch_reply`, for which `origin` is the client's request.
    """

    request: InferRequest
    done: Callable[[Outputs | Exception], None] | None
    rows: int = 1
    signature: Any = None
    enqueued_ns: int = 0
    expires_ns: int = 0  # 0: no timeout
    level: int = 0
    delayed: bool = False  # expired under the DELAY policy: served after all that have not expired
    gone: bool = False  # started, answered or cancelled: skipped when found in a queue
    part: Callable[[Outputs | Exception, bool], None] | None = None  # decoupled models: receives each response
    origin: Any = None
    batch_reply: BatchReply | None = None

    def answer(self, answer: Outputs | Exception) -> None:
        if self.done is not None:
            self.done(answer)
        elif self.batch_reply is not None:
            self.batch_reply.answer_one(self, answer)

    def cancel(self) -> None:
        if self.batch_reply is not None:
            self.batch_reply.cancel(self)


class Level(msgspec.Struct, eq=False):
    """Requests of one priority, first in first out."""

    policy: QueuePolicy
    bound: int  # maximum size; 0: unlimited
    items: deque[QueuedRequest] = msgspec.field(default_factory=deque)
    delayed: deque[QueuedRequest] = msgspec.field(default_factory=deque)
    size: int = 0  # live items only

    def sweep(self) -> None:
        self.items = deque(item for item in self.items if not item.gone)
        self.delayed = deque(item for item in self.delayed if not item.gone)


class RequestQueue:
    """Requests in execution order: by priority level, unexpired before delayed, first in first out."""

    def __init__(self, batching: DynamicBatching | None, default_bound: int) -> None:
        batching = batching or DynamicBatching()
        self.priorities = batching.priority_levels
        self._default_level = batching.default_priority_level
        numbers = range(1, batching.priority_levels + 1) if batching.priority_levels else (0,)
        policies = {number: batching.policy(number) for number in numbers}
        self._levels = {n: Level(policy, policy.max_queue_size or default_bound) for n, policy in policies.items()}
        self.size = 0
        self._next_expiry_ns = 0  # no queued request expires before this; 0: none has a timeout, as in most models

    def push(self, item: QueuedRequest, now_ns: int) -> None:
        """Append a request. Raises QueueFull or BadRequest (priority out of range)."""
        if self.priorities:
            priority = item.request.priority
            if priority > self.priorities:
                raise BadRequest(
                    f"parameters.priority = {priority}, must be at most the model's {self.priorities} levels"
                )
            item.level = priority or self._default_level
        level = self._levels[item.level]
        if level.size >= level.bound > 0:
            raise QueueFull(f"Exceeds maximum queue size: {level.size} requests wait for model '{item.request.model}'")
        item.enqueued_ns = item.enqueued_ns or now_ns  # a sequence's request has waited before it came here
        if level.policy.default_timeout_us or item.request.timeout_us:
            timeout_us, client_us = level.policy.default_timeout_us, item.request.timeout_us
            # A client may shorten the model's timeout if the policy allows it, and set one if the model has none.
            if client_us and (not timeout_us or (level.policy.allow_timeout_override and client_us < timeout_us)):
                timeout_us = client_us
            item.expires_ns = item.enqueued_ns + timeout_us * 1000
            self._next_expiry_ns = min(item.expires_ns, self._next_expiry_ns or item.expires_ns)
        level.items.append(item)
        level.size += 1
        self.size += 1

    def __iter__(self) -> Iterator[QueuedRequest]:
        first = next(iter(self._levels.values()))
        if first.size == self.size == len(first.items):  # common case: one level, none cancelled or delayed
            return iter(first.items)
        return self._live()

    def _live(self) -> Iterator[QueuedRequest]:
        for level in self._levels.values():
            for item in chain(level.items, level.delayed):
                if not item.gone:
                    yield item

    def take(self, count: int) -> list[QueuedRequest]:
        taken: list[QueuedRequest] = []
        for level in self._levels.values():
            for queue in (level.items, level.delayed):
                while queue and len(taken) < count:
                    item = queue.popleft()
                    if not item.gone:
                        level.size -= 1
                        taken.append(item)
        self.size -= len(taken)
        return taken

    def discard(self, item: QueuedRequest) -> None:
        """Remove a request lazily: it is no longer counted, and is skipped when met or swept out with others."""
        level = self._levels[item.level]
        level.size -= 1
        self.size -= 1
        item.gone = True
        if len(level.items) + len(level.delayed) > 2 * level.size + SWEEP_ABOVE:
            level.sweep()

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        """Handle expired requests: return the rejected ones, move delayed ones behind the rest of their level."""
        rejected: list[QueuedRequest] = []
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
                    self.discard(item)
                rejected.extend(late)
        times = (i.expires_ns for level in self._levels.values() for i in level.items if i.expires_ns and not i.gone)
        self._next_expiry_ns = min(times, default=0)
        return rejected

    def next_expiry(self) -> int | None:
        """Return when to call `expire` again: no queued request expires before that."""
        return self._next_expiry_ns or None

    def clear(self) -> list[QueuedRequest]:
        return self.take(self.size)
