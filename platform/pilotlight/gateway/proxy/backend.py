"""Runtime state of one revision: its replicas, the queue of held requests, wake-ups to the control process, counters.

A submitted request gets the least loaded replica, or the one that has the prefix of its prompt, or is held until
`update` brings a replica, a slot is released, or `hold_s` is over. `concurrency` limits the requests in flight per
replica.
"""

import asyncio
import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from pilotlight.contract import HEADER_COLD_START, LATENCY_BUCKETS
from pilotlight.gateway.control_link import Activity, BackendReport, Wake
from pilotlight.gateway.proxy.prefix_index import PrefixIndex, Prompt
from pilotlight.gateway.proxy.responses import ErrorResponse
from pilotlight.gateway.proxy.upstream import LiveReplica
from pilotlight.gateway.routing_table import Backend, Replica, RouteAdapter, RouteKey

MAX_BUFFERED_BYTES: Final = 1 << 30
SMALL_REQUEST_BYTES: Final = 1 << 12  # a thousand of them take 4 MiB
MAX_HELD_BODY: Final = 1 << 20  # bytes that a queued request buffers
WAKE_EVERY_S: Final = 1.0  # repeated, since the control process may have been away
WAKE_AGAIN_S: Final = 0.1  # at first, doubled each time: the holder of a GPU may have been busy for that moment only
UNHEALTHY_S: Final = 1.0  # no requests to a replica after a failed connect
SUSPECT_S: Final = 0.1  # after a broken connection: the sockets of a dying process do not all close at the same moment
RETRY_AFTER_S: Final = 5.0


class Counts:
    """Counters of one backend since the last report; the time is an argument.

    `load`: requests queued or in flight; its time average is the concurrency that autoscalers use.
    """

    __slots__ = (
        "_changed", "_errors", "_held", "_held_s", "_latencies", "_latency_s", "_load_seconds", "_rejected",
        "_requests", "_since", "_used_at", "cold_starts", "load", "lost",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.load = 0
        self._changed = self._used_at = now
        self._reset(now)

    def _reset(self, now: float) -> None:
        self._since = now
        self._load_seconds = 0.0
        self._requests = self._errors = self._rejected = self._held = self.cold_starts = self.lost = 0
        self._held_s = self._latency_s = 0.0
        self._latencies = [0] * (len(LATENCY_BUCKETS) + 1)

    def enter(self, now: float) -> None:
        self._load_seconds += self.load * (now - self._changed)
        self._changed = self._used_at = now
        self.load += 1

    def leave(self, now: float) -> None:
        """Remove a request without a response: it went to another backend, or its client disconnected."""
        self._load_seconds += self.load * (now - self._changed)
        self._changed = self._used_at = now
        self.load -= 1

    def responded(self, now: float, status: int, sent_at: float) -> None:
        """Count a response; `status` 0: none, or a truncated one. The latency excludes the time held."""
        self.leave(now)
        self._requests += 1
        self._latencies[bisect_left(LATENCY_BUCKETS, now - sent_at)] += 1
        self._latency_s += now - sent_at
        if status >= 500 or status == 0:
            self._errors += 1

    def rejected(self, now: float) -> None:
        """Count a request that the gateway answered with an error because no replica could take it."""
        self.leave(now)
        self._requests += 1
        self._errors += 1
        self._rejected += 1

    def held(self, seconds: float) -> None:
        self._held += 1
        self._held_s += seconds

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last request; 0: there are some."""
        return 0.0 if self.load else now - self._used_at

    @property
    def active(self) -> bool:
        """Whether the next report has this backend."""
        return bool(self._load_seconds or self.load or self._requests)

    def take_report(
        self, key: RouteKey, workload: str, revision: str, waiting: int, now: float
    ) -> BackendReport | None:
        """Return the report and reset the counters; None if there were no requests."""
        load_seconds = self._load_seconds + self.load * (now - self._changed)
        seconds = now - self._since
        report = None
        if self.active:
            report = BackendReport(
                *key, workload, revision, load_seconds / seconds if seconds > 0 else float(self.load), self._requests,
                self._errors, waiting, self.load - waiting, self.cold_starts, self._held_s, tuple(self._latencies),
                self._held, self._rejected, self._latency_s, self.lost, self.idle_s(now),
            )  # fmt: skip
        self._changed = now
        self._reset(now)
        return report


class BufferBudget:
    """Budget for request bodies buffered in memory, over all services: the limits of queues are per revision.

    Once it is spent, requests that would have to wait are rejected. Small ones are still held: a service must wake up
    even if others have used up the budget.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = MAX_BUFFERED_BYTES) -> None:
        self.used = 0
        self.limit = limit

    @property
    def full(self) -> bool:
        return self.used > self.limit

    def check(self, size: int, *, growing: bool = False) -> str:
        """Return why a request with `size` buffered bytes may not wait, if `growing` for more; empty: it may."""
        # Clients that send long bodies slowly leave half of the budget to others.
        limit = self.limit // 2 if growing and size > MAX_HELD_BODY else self.limit
        if self.used <= limit or size <= SMALL_REQUEST_BYTES:
            return ""
        return f"waiting requests hold more than {limit >> 20} MiB; retry later"


class PendingRequest(Protocol):
    """A request for a slot on a replica of a route; `tag` names a revision, empty: any."""

    arrived_at: float
    cold: bool  # it waited because there was no replica at all
    max_hold_s: float  # how long the client lets it be held
    prompt: Prompt | None  # by which its replica is chosen; None: by load alone
    backend: "LiveBackend | None"

    @property
    def buffered(self) -> int: ...  # bytes of its body held in memory while it waits
    @property
    def key(self) -> RouteKey: ...
    @property
    def tag(self) -> str: ...
    def assign(self, replica: LiveReplica, now: float) -> None: ...
    def reject(self, error: ErrorResponse) -> None: ...


class LiveBackend:
    __slots__ = (
        "_buffer_budget", "_clock", "_next_index", "_on_wake", "_prefixes", "_wake_again_s", "_waker", "adapters",
        "config", "counts", "key", "replicas", "revision_line", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        key: RouteKey,
        config: Backend,
        on_wake: Callable[[Wake], None],
        clock: Callable[[], float],
        buffer_budget: BufferBudget,
    ) -> None:
        self.key = key
        self.config = config
        self.replicas: list[LiveReplica] = []
        self.waiting: OrderedDict[PendingRequest, asyncio.TimerHandle] = OrderedDict()
        self.counts = Counts(clock())
        self.adapters: dict[str, Counts] = {}  # by the engine's name; `counts` has their requests too
        self.revision_line = b""  # header of responses while several revisions have a share of the traffic
        self._on_wake = on_wake
        self._clock = clock
        self._buffer_budget = buffer_budget
        self._next_index = 0
        self._prefixes = PrefixIndex()
        self._waker: asyncio.TimerHandle | None = None
        self._wake_again_s = WAKE_AGAIN_S

    def update(self, config: Backend) -> None:
        """Apply the next table: retire missing replicas, add new ones, dispatch held requests."""
        previous = {replica.id: replica for replica in self.replicas}
        self.config = config
        self.replicas = [_reuse(previous.get(replica.id), replica) for replica in config.replicas]
        for replica in previous.values():
            if replica not in self.replicas:
                replica.retire()
        self._prefixes.retain(replica.id for replica in self.replicas)
        if self.replicas and not previous and self.waiting:
            self.counts.cold_starts += 1
        if any(replica.id not in previous for replica in self.replicas):
            self._stop_waking()
        self.dispatch_waiting()
        if config.unavailable and not self.replicas:
            while self.waiting:
                request, timer = self.waiting.popitem(last=False)
                timer.cancel()
                self._reject(request, config.unavailable)
        elif self.waiting:
            self._reject_too_late(self._clock())
            self._wake_if_unreachable(self._clock())

    def activity(self, now: float) -> Activity:
        counts, waiting = self.counts, len(self.waiting)
        return Activity(self.key[0], self.config.revision, waiting, counts.load - waiting, counts.idle_s(now))

    def responded(self, adapter: RouteAdapter | None, now: float, status: int, sent_at: float) -> None:
        self.counts.responded(now, status, sent_at)
        if adapter is not None:
            counts = self.adapters.setdefault(adapter.model, Counts(now))
            counts.enter(now)
            counts.responded(now, status, sent_at)

    def remove(self) -> list[PendingRequest]:
        """Retire all replicas of a revision that left the table; return the requests it held."""
        for replica in self.replicas:
            replica.retire()
        self.replicas = []
        self._stop_waking()
        requests = list(self.waiting)
        for request in requests:
            self.withdraw(request)
        return requests

    def submit(self, request: PendingRequest, now: float) -> None:
        request.backend = self
        self.counts.enter(now)
        # Behind held requests even if a slot is free: first come, first served.
        self._assign_or_hold(request, now, None if self.waiting else self._pick(request, now))

    def resubmit(self, request: PendingRequest, now: float) -> None:
        """Submit a request again, ahead of the queue: its replica could not be reached."""
        request.backend = self
        self.counts.enter(now)
        self._assign_or_hold(request, now, self._pick(request, now), front=True)

    def _assign_or_hold(
        self, request: PendingRequest, now: float, replica: LiveReplica | None, front: bool = False
    ) -> None:
        if replica is None:
            self._hold(request, now, front)
        else:
            replica.in_flight += 1
            request.assign(replica, now)

    def withdraw(self, request: PendingRequest) -> None:
        timer = self.waiting.pop(request, None)
        if timer is not None:
            timer.cancel()
        self.counts.leave(self._clock())

    def reject_over_budget(self, request: PendingRequest) -> bool:
        """Reject a held request if its body has outgrown the buffer budget; return whether it was."""
        problem = self._buffer_budget.check(request.buffered) if request in self.waiting else ""
        if problem:
            self.waiting.pop(request).cancel()
            self._reject(request, problem)
        return bool(problem)

    def release(self, replica: LiveReplica) -> None:
        replica.in_flight -= 1
        if self.waiting:
            self.dispatch_waiting()

    def mark_unhealthy(self, replica: LiveReplica, now: float, seconds: float = UNHEALTHY_S) -> None:
        """Send no requests to the replica for `seconds`."""
        until = replica.unhealthy_until = max(replica.unhealthy_until, now + seconds)
        asyncio.get_running_loop().call_later(until - now, self._mark_healthy, replica, until)

    def _mark_healthy(self, replica: LiveReplica, until: float) -> None:
        # Reset instead of comparing with the clock: the event loop's may be some milliseconds ahead of it.
        if replica.unhealthy_until <= until:
            replica.unhealthy_until = 0.0
        self.dispatch_waiting()

    def dispatch_waiting(self) -> None:
        """Assign free slots to held requests, first in first out."""
        now = self._clock()
        while self.waiting:
            request = next(iter(self.waiting))
            replica = self._pick(request, now)
            if replica is None:
                return
            self.waiting.pop(request).cancel()
            self.counts.held(now - request.arrived_at)
            replica.in_flight += 1
            request.assign(replica, now)

    def _pick(self, request: PendingRequest, now: float) -> LiveReplica | None:
        """Return the least loaded replica with a free slot, or the one that the request's prompt leads to."""
        replicas, limit = self.replicas, self.config.concurrency
        if request.prompt is not None and len(replicas) > 1:
            return self._pick_by_prefix(request.prompt, now)
        count = len(replicas)
        # The start rotates, so that equally loaded replicas take turns.
        self._next_index = start = (self._next_index + 1) % count if count else 0
        best: LiveReplica | None = None
        for index in range(start - count, start):
            replica = replicas[index]
            if replica.unhealthy_until > now or (limit and replica.in_flight >= limit):
                continue
            if best is None or replica.in_flight < best.in_flight:
                best = replica
        return best

    def _pick_by_prefix(self, prompt: Prompt, now: float) -> LiveReplica | None:
        limit = self.config.concurrency or math.inf
        free = {each.id: each for each in self.replicas if each.unhealthy_until <= now and each.in_flight < limit}
        loads = {name: replica.in_flight for name, replica in free.items()}
        return free[self._prefixes.pick(loads, prompt)] if free else None

    def _hold(self, request: PendingRequest, now: float, front: bool) -> None:
        config, left = self.config, request.arrived_at + self._hold_s(request) - now
        # A retried request (`front`) was accepted before, so limits of the queue do not reject it.
        if config.unavailable and not self.replicas:
            self._reject(request, config.unavailable)
            self._wake_if_unreachable(now)  # the cause may be gone
        elif not self.replicas and config.starts_at - now >= left:
            self._reject(request, self._too_late(now), config.starts_at - now)
            self._wake_if_unreachable(now)
        elif len(self.waiting) >= config.hold_limit and not front:
            self._reject(request, f"{len(self.waiting)} requests wait for {self.key[1]!r} already; retry later")
        elif not front and (problem := self._buffer_budget.check(request.buffered)):
            self._reject(request, problem)
        elif left <= 0:
            self._expire(request)
        else:
            request.cold = request.cold or not self.replicas
            self.waiting[request] = asyncio.get_running_loop().call_later(left, self._expire, request)
            if front:
                self.waiting.move_to_end(request, last=False)
            self._wake_if_unreachable(now)

    def _expire(self, request: PendingRequest) -> None:
        self.waiting.pop(request, None)
        pending = f", it waits for {self.config.pending}" if self.config.pending else ""
        message = f"no replica of {self.key[1]!r} was free within {self._hold_s(request):g} s{pending}; retry later"
        self._reject(request, message)

    def _hold_s(self, request: PendingRequest) -> float:
        return min(self.config.hold_s, request.max_hold_s)

    def _reject_too_late(self, now: float) -> None:
        """Reject held requests whose deadline comes before the next start of a replica."""
        for request in [] if self.replicas else list(self.waiting):
            if request.arrived_at + self._hold_s(request) <= self.config.starts_at:
                self.waiting.pop(request).cancel()
                self._reject(request, self._too_late(now), self.config.starts_at - now)

    def _too_late(self, now: float) -> str:
        wait_s = math.ceil(self.config.starts_at - now)
        return f"{self.config.revision} crashed and restarts in {wait_s} s, after this request's deadline"

    def _reject(self, request: PendingRequest, message: str, retry_s: float = RETRY_AFTER_S) -> None:
        now = self._clock()
        self.counts.rejected(now)
        request.backend = None
        cold = {HEADER_COLD_START: str(int((now - request.arrived_at) * 1000))} if request.cold else {}
        request.reject(ErrorResponse(503, message, {"Retry-After": str(math.ceil(retry_s)), **cold}))

    def _wake_if_unreachable(self, now: float) -> None:
        """Send a Wake now, soon again, and at least every second while no replica is reachable."""
        if self._waker is None and not any(replica.unhealthy_until <= now for replica in self.replicas):
            # At least 1: a request that was rejected wakes the revision too.
            self._on_wake(Wake(*self.key, self.config.revision, max(1, len(self.waiting))))
            self._waker = asyncio.get_running_loop().call_later(self._wake_again_s, self._repeat_wake)

    def _repeat_wake(self) -> None:
        self._waker = None
        self._wake_again_s = min(WAKE_EVERY_S, 2 * self._wake_again_s)
        if self.waiting:
            self._wake_if_unreachable(self._clock())

    def _stop_waking(self) -> None:
        self._wake_again_s = WAKE_AGAIN_S
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None


def _reuse(live: LiveReplica | None, config: Replica) -> LiveReplica:
    """Return the existing replica with its connections, or a new one if its address has changed."""
    if live is None or (live.config.host, live.config.port) != (config.host, config.port):
        return LiveReplica(config)
    live.config = config
    return live
