"""GPU admission on one machine: which waiting replicas get GPUs, and which holders leave for them. Pure.

Replicas that wait are served in order of arrival. One that cannot start yet reserves the GPUs that it will get, so that
a smaller one behind it cannot overtake it there: each GPU has a queue. Idle holders leave for it, the least recently
used first, once they have been idle for longer than a swap takes: a longer wait would cost more than the swap that it
may save. After a patience busy ones leave too, the longest resident first, so that no model waits without bound, but
none before its residence time is over, so that models do not displace each other all the time. All times are shorter
where a swap costs less.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pilotlight.k8s.quantities import mebibytes

GpuId = int | str
WHOLE: Final = 0  # as an amount of memory: all of the device, shared with no other replica
# Which holders may leave for a replica: none; idle ones; after their patience busy ones too.
Claim = Literal["none", "idle", "busy"]


class Gpu(NamedTuple):
    """`outside`: bytes in use by programs and parked processes that hold nothing here. Memory 0: not known."""

    id: GpuId
    memory: int = 0
    outside: int = 0


class Holder(NamedTuple):
    """Replica that holds `memory` bytes of each of its GPUs. Times are monotonic seconds."""

    replica: str
    service: str
    gpus: tuple[GpuId, ...]
    memory: int = WHOLE
    leaving: bool = False  # it is being parked or stopped
    evictable: bool = False  # its lower bound is zero and it is not pinned
    busy: bool = False  # it has requests
    ready_at: float | None = None  # None: it is starting
    swap_s: float | None = None  # that its last load took, or its parking and a wake; None: not known
    residence_s: float | None = None  # declared
    last_used: float = 0.0
    seen_at: float | None = None  # until when its requests are known; None: until now


class Waiter(NamedTuple):
    """Replica that needs `memory` bytes of each of `number` GPUs; a parked process can only have its own, `gpus`."""

    replica: str
    service: str
    number: int
    memory: int = WHOLE
    gpus: tuple[GpuId, ...] = ()
    since: float = 0.0
    claim: Claim = "none"


class Rules(NamedTuple):
    """Longest times of holders that declare none; those whose swap costs little have shorter ones."""

    residence_s: float = 10.0  # a holder stays ready this long, or as long as its load took
    patience_s: float = 30.0  # before busy holders leave for a replica with waiting requests


DEFAULT_RULES: Final = Rules()
SWAPS: Final = 10  # a GPU spends at most a tenth of its time on swaps that cost less than a tenth of `residence_s`
SHORTEST_S: Final = 1.0  # a swap costs more than what is measured of it: routing, drains, cold caches
IDLE_SWAPS: Final = 2  # routing and drains make a swap about twice as long as what is measured of it
IDLE_AT_LEAST_S: Final = 0.2  # between two requests of a client
IDLE_AT_MOST_S: Final = 3.0
REPORT_DELAY_S: Final = 3.0  # a second with requests is reported within this time after its beginning


def idle_time(holder: Holder) -> float:
    """Return the seconds without a request after which a holder may leave for another."""
    if holder.swap_s is None:
        return IDLE_AT_MOST_S
    return min(IDLE_AT_MOST_S, max(IDLE_AT_LEAST_S, IDLE_SWAPS * holder.swap_s))


def idle_residence(holder: Holder, rules: Rules) -> float:
    """Return the seconds that a ready holder stays at least if it is idle: as long as its swap takes."""
    if holder.residence_s is None and holder.swap_s is not None:
        return holder.swap_s
    return residence(holder, rules)


def residence(holder: Holder, rules: Rules) -> float:
    """Return the seconds that a ready holder stays at least if it is busy."""
    if holder.residence_s is not None:
        return holder.residence_s
    if holder.swap_s is None:
        return rules.residence_s
    return max(holder.swap_s, min(rules.residence_s, max(SHORTEST_S, SWAPS * holder.swap_s)))


def patience(holder: Holder, rules: Rules) -> float:
    """Return the seconds that requests wait before a busy holder leaves: in proportion to its residence time."""
    if not rules.residence_s:
        return rules.patience_s
    return rules.patience_s * min(1.0, residence(holder, rules) / rules.residence_s)


class Eviction(NamedTuple):
    replica: str
    reason: str


@dataclass(slots=True)
class Admission:
    """What to start, park and stop, and when time alone will allow more.

    `moves`: parked replicas to end, since they can start on other GPUs. `reasons`: why the others wait. `blocked`:
    those of them for which no holder will ever leave. `next_at`: when the next holder may leave for one that waits.
    """

    admitted: dict[str, tuple[GpuId, ...]] = field(default_factory=dict)
    evictions: list[Eviction] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    next_at: float | None = None


def admit(
    now: float, gpus: Sequence[Gpu], holders: Iterable[Holder], waiting: Iterable[Waiter], rules: Rules = DEFAULT_RULES
) -> Admission:
    """Return what to start, park and stop now. Called again whenever something has changed, and every second."""
    queue = _Queue(now, gpus, list(holders), rules)
    for waiter in sorted(waiting, key=lambda each: each.since):
        queue.place(waiter)
    return queue.result


def impossible(count: int, memory: int, gpus: Sequence[Gpu]) -> str:
    """Return why no GPUs of this machine can ever hold that; empty: they can."""
    if count > len(gpus):
        available = f"this machine has {len(gpus)}" if gpus else "this machine has none"
        return f"needs {count} GPU{'s' if count > 1 else ''}, but {available}"
    large = sorted((gpu.memory for gpu in gpus), reverse=True)[:count]
    if memory and large and large[-1] and memory > large[-1]:
        largest = "the largest GPU of this machine has" if count == 1 else f"{count} GPUs of this machine have"
        return f"needs {mebibytes(memory)} of GPU memory, but {largest} {mebibytes(large[-1])}"
    return ""


def described(count: int, memory: int) -> str:
    """Return a need as text: a GPU, 8Gi of a GPU, 2 GPUs."""
    what = "a GPU" if count == 1 else f"{count} GPUs"
    return f"{mebibytes(memory)} of {what}" if memory else what


class _Queue:
    """Places waiters one after the other.

    `_present` is what each GPU holds until those that leave have left, `_future` what it holds after that. A replica
    starts only where it fits into both; it reserves in `_future` alone.
    """

    def __init__(self, now: float, gpus: Sequence[Gpu], holders: Sequence[Holder], rules: Rules) -> None:
        self._now, self._gpus, self._holders, self._rules = now, gpus, holders, rules
        self._present = {gpu.id: [each for each in holders if gpu.id in each.gpus] for gpu in gpus}
        self._future = {name: [each for each in held if not each.leaving] for name, held in self._present.items()}
        self.result = Admission()

    def place(self, waiter: Waiter) -> None:
        if problem := impossible(waiter.number, waiter.memory, self._gpus):
            self.result.reasons[waiter.replica] = problem
            return
        own = [gpu for gpu in self._gpus if not waiter.gpus or gpu.id in waiter.gpus]
        if chosen := self._free(waiter, own):
            self.result.admitted[waiter.replica] = chosen
            self._occupy(waiter, chosen, self._present, self._future)
            return
        self.result.reasons[waiter.replica] = self._reason(waiter, own)
        if (plan := self._plan(waiter, own)) is not None:
            self._evict(waiter, plan)
        elif waiter.gpus and (elsewhere := self._free(waiter, self._gpus)):
            self.result.moves.append(waiter.replica)
            self._occupy(waiter, elsewhere, self._future)
        elif waiter.claim == "busy" and (later := self._plan(waiter, own, eventually=True)) is not None:
            self._occupy(waiter, tuple(later), self._future)  # bounded by patience and residence of holders
        elif waiter.claim == "none" or not self._may_ever_fit(waiter, own):
            self.result.blocked.add(waiter.replica)

    def _free(self, waiter: Waiter, gpus: Sequence[Gpu]) -> tuple[GpuId, ...]:
        """Return the GPUs where it can start now: the fullest ones that it fits into; for whole ones the least used."""
        free = [gpu for gpu in gpus if self._fits(waiter, gpu, self._present) and self._fits(waiter, gpu, self._future)]
        free.sort(key=lambda gpu: _left(gpu, self._present[gpu.id]) if waiter.memory else gpu.outside)
        return tuple(gpu.id for gpu in free[: waiter.number]) if len(free) >= waiter.number else ()

    def _may_ever_fit(self, waiter: Waiter, gpus: Sequence[Gpu]) -> bool:
        """Whether enough holders leave at some time; others that wait before it get the GPU, and leave it again."""
        stay = [each for each in self._holders if not (each.evictable or each.leaving)]
        held = {gpu.id: [each for each in stay if gpu.id in each.gpus] for gpu in gpus}
        return sum(self._fits(waiter, gpu, held) for gpu in gpus) >= waiter.number

    def _fits(
        self, waiter: Waiter, gpu: Gpu, held: dict[GpuId, list[Holder]], without: Collection[Holder] = ()
    ) -> bool:
        others = [each for each in held[gpu.id] if each not in without]
        if not waiter.memory or not gpu.memory or any(not each.memory for each in others):
            return not others
        return min(waiter.memory, gpu.memory) <= _left(gpu, others)

    def _plan(
        self, waiter: Waiter, gpus: Sequence[Gpu], *, eventually: bool = False
    ) -> dict[GpuId, list[Holder]] | None:
        """Return the GPUs that it will get with the holders that leave them, all or nothing; None: not yet.

        `eventually`: the holders that may leave at some time, whether or not they may now.
        """
        found = {gpu.id: victims for gpu in gpus if (victims := self._victims(waiter, gpu, eventually)) is not None}
        if len(found) < waiter.number:
            return None
        return dict(sorted(found.items(), key=lambda each: self._cost(each[1]))[: waiter.number])

    def _victims(self, waiter: Waiter, gpu: Gpu, eventually: bool) -> list[Holder] | None:
        victims: list[Holder] = []
        candidates = (each for each in self._future[gpu.id] if self._may_leave(each, waiter, eventually))
        order = sorted(candidates, key=lambda e: (e.busy, (e.ready_at or 0.0) if e.busy else e.last_used))
        for holder in order:
            if self._fits(waiter, gpu, self._future, victims):
                break
            victims.append(holder)
        if not self._fits(waiter, gpu, self._future, victims):
            return None
        for holder in reversed(victims):  # the memory of a later one may have made an earlier one unnecessary
            others = [each for each in victims if each is not holder]
            if self._fits(waiter, gpu, self._future, others):
                victims = others
        return victims

    def _may_leave(self, holder: Holder, waiter: Waiter, eventually: bool) -> bool:
        if not holder.evictable or waiter.claim == "none":
            return False
        if eventually:
            return True
        if holder.ready_at is None:
            return False
        at = self._may_leave_at(holder, holder.ready_at, waiter)
        if self._now < at < math.inf:
            self.result.next_at = min(at, math.inf if self.result.next_at is None else self.result.next_at)
        return self._now >= at

    def _may_leave_at(self, holder: Holder, ready_at: float, waiter: Waiter) -> float:
        """Return when it may leave if it gets no more requests, or busy as it is; infinity: not for this waiter."""
        idle_at = holder.last_used + idle_time(holder)
        if holder.seen_at is not None and holder.seen_at < idle_at:
            idle_at += REPORT_DELAY_S  # it may have had requests since
        idle = max(ready_at + idle_residence(holder, self._rules), idle_at)
        busy = max(ready_at + residence(holder, self._rules), waiter.since + patience(holder, self._rules))
        if waiter.claim == "busy":
            return busy if holder.busy else min(idle, busy)
        return math.inf if holder.busy else idle

    def _cost(self, victims: Sequence[Holder]) -> tuple[bool, float, float]:
        """Return the sort key of a GPU: idle victims first, those that may leave soonest, the least recently used."""
        ready = ((self._now if each.ready_at is None else each.ready_at, each) for each in victims)
        until = max((at + residence(each, self._rules) for at, each in ready), default=0.0)
        used = max((each.last_used for each in victims), default=0.0)
        return any(each.busy for each in victims), max(until, self._now), used

    def _evict(self, waiter: Waiter, plan: dict[GpuId, list[Holder]]) -> None:
        for gpu, victims in plan.items():
            for victim in victims:
                need = f"{mebibytes(waiter.memory)} of GPU {gpu}" if waiter.memory else f"GPU {gpu}"
                idle_s = self._now - victim.last_used
                reason = f"{waiter.service} needs {need}, idle for {idle_s:.{0 if idle_s > 9 else 1}f} s"
                if victim.busy:
                    reason = f"{waiter.service} has waited {self._now - waiter.since:.0f} s for {need}"
                if victim.replica not in {each.replica for each in self.result.evictions}:
                    self.result.evictions.append(Eviction(victim.replica, reason))
        gone = {each.replica for each in self.result.evictions}
        for held in self._future.values():
            held[:] = [each for each in held if each.replica not in gone]
        self._occupy(waiter, tuple(plan), self._future)

    def _occupy(self, waiter: Waiter, gpus: tuple[GpuId, ...], *tables: dict[GpuId, list[Holder]]) -> None:
        holder = Holder(waiter.replica, waiter.service, gpus, waiter.memory)
        for table in tables:
            for gpu in gpus:
                table[gpu].append(holder)

    def _reason(self, waiter: Waiter, gpus: Sequence[Gpu]) -> str:
        services = sorted({each.service for gpu in gpus for each in self._present[gpu.id]})
        holders = f"held by {', '.join(services) or 'other programs'}"
        if waiter.gpus:
            return f"parked, and waiting for its GPU {holders}"
        in_use = sum(map(bool, self._present.values()))
        return f"waiting for {described(waiter.number, waiter.memory)} {holders} ({in_use} of {len(self._gpus)} in use)"


def _left(gpu: Gpu, held: Iterable[Holder]) -> int:
    return gpu.memory - gpu.outside - sum(each.memory for each in held)
