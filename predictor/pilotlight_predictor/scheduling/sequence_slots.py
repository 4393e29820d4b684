"""Slots of the sequence batcher: which sequence has which slot, and which request runs next. Pure.

A sequence is a series of requests with one correlation id, from START to END, which one instance must see in order. It
holds a slot of an instance from its first request to its last, or until it was idle for too long; while all slots are
taken, sequences wait in a backlog in the order of their first requests. One request of a sequence runs at a time.

SequenceScheduler calls `add` for each request, `take` for the next to run, `finished` when it was answered.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec import Struct, field

from pilotlight_predictor.core.requests import Outputs, SequencePoint
from pilotlight_predictor.errors import BadRequest, QueueFull
from pilotlight_predictor.scheduling.queue import QueuedRequest


class Slot(NamedTuple):
    """Slot of an instance, ordered so that sequences spread over instances before they share one."""

    number: int
    instance: int


class SequenceRun(Struct, eq=False):
    """One sequence. `open`: its last request was not END, so more follow. `state`: the model's implicit state."""

    id: int | str
    slot: Slot | None = None
    waiting: deque[QueuedRequest] = field(default_factory=deque)
    running: QueuedRequest | None = None
    open: bool = True
    dropped: bool = False
    state: Outputs = field(default_factory=dict)
    last_request_ns: int = 0


class SequenceTable:
    """Sequences and their slots. `bound`: maximum number of waiting requests, 0: unlimited."""

    def __init__(self, slots: Iterable[Slot], bound: int, idle_ns: int) -> None:
        self._free = list(slots)
        heapify(self._free)
        self._failed_instances: set[int] = set()
        self._bound, self._idle_ns = bound, idle_ns
        self._known: dict[int | str, SequenceRun] = {}
        self._backlog: dict[SequenceRun, None] = {}
        self.waiting = 0
        self.running = 0

    def add(self, item: QueuedRequest, point: SequencePoint, now_ns: int) -> SequenceRun:
        """Append a request to its sequence, which is returned. Raises BadRequest or QueueFull."""
        sequence = self._known.get(point.id)
        if not point.start and (sequence is None or not sequence.open):
            raise BadRequest(
                f"inference request for sequence {point.id} to model '{item.request.model}' must specify the START flag"
                " on the first request of the sequence"
            )
        # Refusing a request that would run at once would block the backlog, which waits for its sequence's END.
        if (
            self._bound
            and self.waiting >= self._bound
            and (sequence is None or sequence.slot is None or not _is_idle(sequence))
        ):
            raise QueueFull(
                f"Exceeds maximum queue size: {self.waiting} requests of sequences wait for '{item.request.model}'"
            )
        if sequence is None:
            sequence = self._known[point.id] = SequenceRun(point.id)
            self._backlog[sequence] = None
            self.fill()
        sequence.waiting.append(item)
        sequence.open, sequence.last_request_ns = not point.end, now_ns
        self.waiting += 1
        return sequence

    def take(self, sequence: SequenceRun) -> QueuedRequest | None:
        """Return the next request of a sequence that has a slot and no running request."""
        if sequence.slot is None or sequence.running is not None or not sequence.waiting:
            return None
        sequence.running = sequence.waiting.popleft()
        self.waiting -= 1
        self.running += 1
        return sequence.running

    def finished(self, sequence: SequenceRun, end: bool, now_ns: int) -> list[SequenceRun]:
        """Record that its request was answered. Return the sequences that may run next."""
        sequence.running, sequence.last_request_ns = None, now_ns
        self.running -= 1
        if not end and not sequence.dropped:
            return [sequence]
        self._release(sequence)
        if sequence.waiting:  # a START after the END: a new sequence of the same id, at the end of the backlog
            sequence.state = {}
            self._backlog[sequence] = None
        elif self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        return self.fill()

    def drop(self, sequence: SequenceRun) -> list[QueuedRequest]:
        """End a sequence before its END. Return its waiting requests, which the caller must fail."""
        left = list(sequence.waiting)
        sequence.waiting.clear()
        self.waiting -= len(left)
        sequence.open, sequence.dropped = False, True
        self._backlog.pop(sequence, None)
        if self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        if sequence.running is None:
            self._release(sequence)
        return left

    def expire(self, now_ns: int) -> None:
        """End sequences that were idle for too long."""
        idle = [
            sequence
            for sequence in self._known.values()
            if _is_idle(sequence) and now_ns - sequence.last_request_ns >= self._idle_ns
        ]
        for sequence in idle:
            self.drop(sequence)

    def next_expiry(self) -> int | None:
        """Return when to call `expire` again; None while no sequence is idle."""
        oldest = min((each.last_request_ns for each in self._known.values() if _is_idle(each)), default=None)
        return None if oldest is None else oldest + self._idle_ns

    def remove_instance(self, instance: int) -> None:
        """Withdraw the slots of a failed instance."""
        self._failed_instances.add(instance)
        self._free = [slot for slot in self._free if slot.instance != instance]
        heapify(self._free)

    def backlog(self) -> list[SequenceRun]:
        """Return the sequences without a slot, in order."""
        return list(self._backlog)

    def fill(self) -> list[SequenceRun]:
        """Assign free slots to the sequences that have waited longest, and return these."""
        assigned = []
        while self._free and self._backlog:
            sequence = next(iter(self._backlog))
            del self._backlog[sequence]
            sequence.slot = heappop(self._free)
            assigned.append(sequence)
        return assigned

    def _release(self, sequence: SequenceRun) -> None:
        slot, sequence.slot = sequence.slot, None
        if slot is not None and slot.instance not in self._failed_instances:
            heappush(self._free, slot)


def _is_idle(sequence: SequenceRun) -> bool:
    return sequence.running is None and not sequence.waiting
