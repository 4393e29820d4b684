"""One revision as it lives: its replicas, who waits for one, and whom to tell.

Requests ask to `enter`. They get the least loaded replica, or wait in line until `update` brings one, somebody
`leave`s, or the time to wait is over. `concurrency` bounds what one replica has at a time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from pilotlight.gateway.counts import Counts
from pilotlight.gateway.gate import Refusal
from pilotlight.gateway.messages import Wake
from pilotlight.gateway.replica import LiveReplica
from pilotlight.gateway.room import Room
from pilotlight.gateway.routing import Key
from pilotlight.gateway.table import Backend, Replica

WAKE_EVERY_S: Final = 1.0  # the control process may have been away
SHUN_S: Final = 1.0  # a replica that could not be reached is left alone so long
DOUBT_S: Final = 0.1  # one that broke a connection may be dying: its sockets do not all close at the same moment
RETRY_AFTER: Final = {"Retry-After": "5"}


class Asker(Protocol):
    """Whoever wants a place on a replica: of a route, and there of a revision or (tag "") of any."""

    arrived: float
    cold: bool  # it waited because there was no replica at all
    backend: "LiveBackend | None"

    @property
    def kept(self) -> int: ...  # bytes of it that take room while it waits
    @property
    def key(self) -> Key: ...
    @property
    def tag(self) -> str: ...
    def take(self, replica: LiveReplica, now: float) -> None: ...
    def refuse(self, refusal: Refusal) -> None: ...


class LiveBackend:
    __slots__ = (
        "_clock", "_on_wake", "_room", "_turn", "_waker", "config", "counts", "gone", "key", "replicas", "waiting",
    )  # fmt: skip

    def __init__(
        self, key: Key, config: Backend, on_wake: Callable[[Wake], None], clock: Callable[[], float], room: Room
    ) -> None:
        self.key = key
        self.config = config
        self.replicas: list[LiveReplica] = []
        self.waiting: OrderedDict[Asker, asyncio.TimerHandle] = OrderedDict()
        self.counts = Counts(clock())
        self.gone = False
        self._on_wake = on_wake
        self._clock = clock
        self._room = room
        self._turn = 0
        self._waker: asyncio.TimerHandle | None = None

    def update(self, config: Backend) -> None:
        """The next table's word: missing replicas get nothing from here on, and whoever waits may go on."""
        had = {replica.id: replica for replica in self.replicas}
        self.config = config
        self.replicas = [_adopted(had.get(replica.id), replica) for replica in config.replicas]
        for replica in had.values():
            if replica not in self.replicas:
                replica.retire()
        if self.replicas and not had and self.waiting:
            self.counts.cold_starts += 1
        if any(replica.id not in had for replica in self.replicas):
            self._stop_waking()
        self.hand_out()
        self._settle_waiting()

    def remove(self) -> list[Asker]:
        """The revision is in no table any more; returns who waited for it."""
        self.gone = True
        for replica in self.replicas:
            replica.retire()
        self.replicas = []
        self._stop_waking()
        askers = list(self.waiting)
        for asker in askers:
            self.withdraw(asker)
        return askers

    def enter(self, asker: Asker, now: float) -> None:
        asker.backend = self
        self.counts.enter(now)
        self._place(asker, now, None if self.waiting else self._least_loaded(now))

    def enter_first(self, asker: Asker, now: float) -> None:
        """For one who had a place and could not use it: its turn was before all who wait."""
        asker.backend = self
        self.counts.enter(now)
        self._place(asker, now, self._least_loaded(now), first=True)

    def _place(self, asker: Asker, now: float, replica: LiveReplica | None, first: bool = False) -> None:
        if replica is None:
            self._hold(asker, now, first)
        else:
            replica.in_flight += 1
            asker.take(replica, now)

    def withdraw(self, asker: Asker) -> None:
        """It waits no longer; its place in the line is free."""
        timer = self.waiting.pop(asker, None)
        if timer is not None:
            timer.cancel()
        self.counts.leave(self._clock())

    def turns_away(self, asker: Asker) -> bool:
        """One that has grown while it waits, if there is no room for it."""
        full = self._room.refuses(asker.kept) if asker in self.waiting else ""
        if full:
            self.waiting.pop(asker).cancel()
            self._refuse(asker, full)
        return bool(full)

    def leave(self, replica: LiveReplica) -> None:
        replica.in_flight -= 1
        if self.waiting:
            self.hand_out()

    def shun(self, replica: LiveReplica, now: float, seconds: float = SHUN_S) -> None:
        """It could not be reached: others are asked, until it is tried again."""
        until = replica.shunned_until = max(replica.shunned_until, now + seconds)
        asyncio.get_running_loop().call_later(until - now, self._try_again, replica, until)

    def _try_again(self, replica: LiveReplica, until: float) -> None:
        """The timer's word counts: its clock may be some milliseconds ahead of ours."""
        if replica.shunned_until <= until:
            replica.shunned_until = 0.0
        self.hand_out()

    def hand_out(self) -> None:
        """Gives free places to those who wait, in the order in which they came."""
        now = self._clock()
        while self.waiting:
            replica = self._least_loaded(now)
            if replica is None:
                return
            asker, timer = self.waiting.popitem(last=False)
            timer.cancel()
            self.counts.held(now - asker.arrived)
            replica.in_flight += 1
            asker.take(replica, now)

    def _least_loaded(self, now: float) -> LiveReplica | None:
        """Equals take turns."""
        replicas, limit = self.replicas, self.config.concurrency
        count = len(replicas)
        self._turn = turn = (self._turn + 1) % count if count else 0
        best: LiveReplica | None = None
        for index in range(turn - count, turn):
            replica = replicas[index]
            if replica.shunned_until > now or (limit and replica.in_flight >= limit):
                continue
            if best is None or replica.in_flight < best.in_flight:
                best = replica
        return best

    def _hold(self, asker: Asker, now: float, first: bool) -> None:
        config, left = self.config, asker.arrived + self.config.hold_s - now
        if config.unavailable and not self.replicas:
            self._refuse(asker, config.unavailable)
        elif len(self.waiting) >= config.hold_limit and not first:
            self._refuse(asker, f"{len(self.waiting)} requests wait for {self.key[1]!r} already; try again later")
        elif not first and (full := self._room.refuses(asker.kept)):
            self._refuse(asker, full)
        elif left <= 0:
            self._give_up(asker)
        else:
            asker.cold = asker.cold or not self.replicas
            self.waiting[asker] = asyncio.get_running_loop().call_later(left, self._give_up, asker)
            if first:
                self.waiting.move_to_end(asker, last=False)
            self._wake_if_bare(now)

    def _give_up(self, asker: Asker) -> None:
        self.waiting.pop(asker, None)
        self._refuse(asker, f"no replica of {self.key[1]!r} was free within {self.config.hold_s:g} s; try again later")

    def _refuse(self, asker: Asker, why: str) -> None:
        self.counts.refused(self._clock())
        asker.backend = None
        asker.refuse(Refusal(503, why, RETRY_AFTER))

    def _settle_waiting(self) -> None:
        """Whoever still waits does so for a replica, or in vain."""
        if self.config.unavailable and not self.replicas:
            while self.waiting:
                asker, timer = self.waiting.popitem(last=False)
                timer.cancel()
                self._refuse(asker, self.config.unavailable)
        elif self.waiting:
            self._wake_if_bare(self._clock())

    def _wake_if_bare(self, now: float) -> None:
        """At once when nothing can be reached, and again every second for as long as that is so."""
        if self._waker is None and not any(replica.shunned_until <= now for replica in self.replicas):
            self._on_wake(Wake(*self.key, self.config.revision, len(self.waiting)))
            self._waker = asyncio.get_running_loop().call_later(WAKE_EVERY_S, self._wake_again)

    def _wake_again(self) -> None:
        self._waker = None
        if self.waiting:
            self._wake_if_bare(self._clock())

    def _stop_waking(self) -> None:
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None


def _adopted(live: LiveReplica | None, config: Replica) -> LiveReplica:
    """The one that is there, with its connections, unless it has moved."""
    if live is None or (live.config.host, live.config.port) != (config.host, config.port):
        return LiveReplica(config)
    live.config = config
    return live
