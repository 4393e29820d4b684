"""A place on a replica for a request that the gateway does not carry over HTTP/1.1 itself, such as a gRPC call."""

import asyncio
from collections.abc import Callable

from pilotlight.gateway.backend import LiveBackend
from pilotlight.gateway.gate import Refusal, Refused
from pilotlight.gateway.replica import LiveReplica
from pilotlight.gateway.routing import Key
from pilotlight.gateway.table import Replica


class Lease:
    """Given back exactly once, with the HTTP status that the answer amounts to (0: none came)."""

    def __init__(
        self, backend: LiveBackend, live: LiveReplica, cold_ms: int | None, clock: Callable[[], float]
    ) -> None:  # fmt: skip
        self.replica: Replica = live.config
        self.revision = backend.config.revision
        self.cold_ms = cold_ms  # how long it waited for the first replica; None when there was one
        self._backend = backend
        self._live = live
        self._clock = clock
        self._since = clock()

    def release(self, status: int) -> None:
        self._backend.counts.answered(self._clock(), status, self._since)
        self._backend.leave(self._live)

    def unreachable(self) -> bool:
        """Gives it back because the replica could not be connected to; it is left alone for a while.

        Whether that is news: not while it is left alone already.
        """
        now = self._clock()
        news = not self._live.shunned(now)
        self._backend.counts.leave(now)
        self._backend.shun(self._live, now)
        self._backend.leave(self._live)
        return news


class LeaseRequest:
    """Waits in the same line as every other request."""

    kept = 0  # its bytes are with whoever asks for it

    def __init__(self, key: Key, tag: str, clock: Callable[[], float]) -> None:
        self.key = key
        self.tag = tag
        self.arrived = clock()
        self.cold = False
        self.backend: LiveBackend | None = None
        self.granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._clock = clock

    def take(self, replica: LiveReplica, now: float) -> None:
        assert self.backend is not None
        cold_ms = int((now - self.arrived) * 1000) if self.cold else None
        lease = Lease(self.backend, replica, cold_ms, self._clock)
        if self.granted.done():  # whoever asked has gone
            lease.release(499)
        else:
            self.granted.set_result(lease)

    def refuse(self, refusal: Refusal) -> None:
        if not self.granted.done():
            self.granted.set_exception(Refused(refusal))

    def withdraw(self) -> None:
        """Nobody waits for it any more."""
        if self.granted.done() and not self.granted.cancelled():
            if self.granted.exception() is None:
                self.granted.result().release(499)
        elif self.backend is not None:
            self.backend.withdraw(self)
