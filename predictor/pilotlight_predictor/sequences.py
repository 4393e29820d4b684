"""Which sequence has which slot, and whose request is next. Pure: the clock comes in as an argument.

A sequence is a run of requests of one id, from START to END, that one instance must see in order. It has a slot of an
instance from its first request to its last, or until it was idle for too long; while every slot is taken, sequences
wait in a backlog in the order of their first requests. Of a sequence one request runs at a time.

    sequence_scheduler.py asks: `arrive` for each request, `take` for the next to run, `finished` when it was answered
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec import Struct, field

from pilotlight_predictor.errors import BadRequest, QueueFull
from pilotlight_predictor.inference import Outputs, SequencePoint
from pilotlight_predictor.waiting import Item


class Slot(NamedTuple):
    """Ordered so that sequences spread over instances before they share one."""

    number: int
    instance: int


class Sequence(Struct, eq=False):
    """`open`: its last request was no END, so it takes more."""

    id: int | str
    slot: Slot | None = None
    waiting: deque[Item] = field(default_factory=deque)
    running: Item | None = None
    open: bool = True
    dropped: bool = False
    kept: Outputs = field(default_factory=dict)
    touched_ns: int = 0


class SequenceTable:
    """`bound`: how many requests may wait in all, 0 for any number."""

    def __init__(self, slots: Iterable[Slot], bound: int, idle_ns: int) -> None:
        self._free = list(slots)
        heapify(self._free)
        self._lost: set[int] = set()
        self._bound, self._idle_ns = bound, idle_ns
        self._known: dict[int | str, Sequence] = {}
        self._backlog: dict[Sequence, None] = {}
        self.waiting = 0
        self.running = 0

    def arrive(self, item: Item, point: SequencePoint, now_ns: int) -> Sequence:
        """The sequence that the request belongs to. Raises BadRequest or QueueFull."""
        sequence = self._known.get(point.id)
        if not point.start and (sequence is None or not sequence.open):
            raise BadRequest(
                f"inference request for sequence {point.id} to model '{item.request.model}' must specify the START flag"
                " on the first request of the sequence"
            )
        if self._bound and self.waiting >= self._bound and (sequence is None or not _may_run(sequence)):
            raise QueueFull(
                f"Exceeds maximum queue size: {self.waiting} requests of sequences wait for '{item.request.model}'"
            )
        if sequence is None:
            sequence = self._known[point.id] = Sequence(point.id)
            self._backlog[sequence] = None
            self.fill()
        sequence.waiting.append(item)
        sequence.open, sequence.touched_ns = not point.end, now_ns
        self.waiting += 1
        return sequence

    def take(self, sequence: Sequence) -> Item | None:
        """Its next request, if it has a slot and none runs."""
        if sequence.slot is None or sequence.running is not None or not sequence.waiting:
            return None
        sequence.running = sequence.waiting.popleft()
        self.waiting -= 1
        self.running += 1
        return sequence.running

    def finished(self, sequence: Sequence, end: bool, now_ns: int) -> list[Sequence]:
        """Its request was answered. Those that may have something to run: itself, or whoever got its slot."""
        sequence.running, sequence.touched_ns = None, now_ns
        self.running -= 1
        if not end and not sequence.dropped:
            return [sequence]
        self._release(sequence)
        if sequence.waiting:  # a START behind the END: the same id once more, and at the end of the line
            sequence.kept = {}
            self._backlog[sequence] = None
        elif self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        return self.fill()

    def drop(self, sequence: Sequence) -> list[Item]:
        """Ends it before its END. What still waited, for whoever asked to be told."""
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
        """Ends those that nobody asked anything for so long."""
        idle = [
            sequence
            for sequence in self._known.values()
            if _is_idle(sequence) and now_ns - sequence.touched_ns >= self._idle_ns
        ]
        for sequence in idle:
            self.drop(sequence)

    def next_expiry(self) -> int | None:
        """When to call `expire` again; None while none is idle: whoever is answered may become so."""
        oldest = min((each.touched_ns for each in self._known.values() if _is_idle(each)), default=None)
        return None if oldest is None else oldest + self._idle_ns

    def lose(self, instance: int) -> None:
        """The instance is dead: its slots are given to nobody."""
        self._lost.add(instance)
        self._free = [slot for slot in self._free if slot.instance != instance]
        heapify(self._free)

    def backlog(self) -> list[Sequence]:
        """Those without a slot, in order."""
        return list(self._backlog)

    def fill(self) -> list[Sequence]:
        """Free slots go to those who have waited longest; they are returned."""
        placed = []
        while self._free and self._backlog:
            sequence = next(iter(self._backlog))
            del self._backlog[sequence]
            sequence.slot = heappop(self._free)
            placed.append(sequence)
        return placed

    def _release(self, sequence: Sequence) -> None:
        slot, sequence.slot = sequence.slot, None
        if slot is not None and slot.instance not in self._lost:
            heappush(self._free, slot)


def _may_run(sequence: Sequence) -> bool:
    """Its next request would not wait; were it refused, those in the backlog would wait for it."""
    return sequence.slot is not None and _is_idle(sequence)


def _is_idle(sequence: Sequence) -> bool:
    return sequence.running is None and not sequence.waiting
