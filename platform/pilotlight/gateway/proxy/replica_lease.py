"""Slot on a replica for a request of another protocol than HTTP/1.1, such as a gRPC call."""

import asyncio
import math
from collections.abc import Callable

from pilotlight.gateway.proxy.backend import LiveBackend
from pilotlight.gateway.proxy.prefix_index import Prompt
from pilotlight.gateway.proxy.responses import ErrorResponse, RequestRejected
from pilotlight.gateway.proxy.upstream import LiveReplica
from pilotlight.gateway.routing_table import Replica, RouteKey


class Lease:
    """A slot, to be released exactly once, with the HTTP status that the response corresponds to (0: none)."""

    def __init__(
        self, backend: LiveBackend, replica: LiveReplica, cold_ms: int | None, clock: Callable[[], float]
    ) -> None:
        self.replica: Replica = replica.config
        self.config = backend.config
        self.revision = backend.config.revision
        self.split = bool(backend.revision_line)  # other revisions have a share of the traffic, too
        self.cold_ms = cold_ms  # time until the first replica was there; None without a cold start
        self._backend = backend
        self._live = replica
        self._clock = clock
        self._since = clock()

    def release(self, status: int) -> None:
        self._backend.counts.responded(self._clock(), status, self._since)
        self._backend.release(self._live)

    def fail_unreachable(self) -> bool:
        """Release the slot of a replica that refused the connection, and mark the replica unhealthy.

        Return whether it was healthy before: only then is it worth a report.
        """
        now = self._clock()
        was_healthy = not self._live.is_unhealthy(now)
        self._backend.counts.leave(now)
        self._backend.mark_unhealthy(self._live, now)
        self._backend.release(self._live)
        return was_healthy


class LeaseRequest:
    """Request for a slot, in the same queue as HTTP requests."""

    buffered = 0  # the caller buffers
    max_hold_s = math.inf  # the caller withdraws at its deadline
    prompt: Prompt | None = None

    def __init__(self, key: RouteKey, tag: str, clock: Callable[[], float]) -> None:
        self.key = key
        self.tag = tag
        self.arrived_at = clock()
        self.cold = False
        self.backend: LiveBackend | None = None
        self.granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._clock = clock

    def assign(self, replica: LiveReplica, now: float) -> None:
        assert self.backend is not None
        cold_ms = int((now - self.arrived_at) * 1000) if self.cold else None
        lease = Lease(self.backend, replica, cold_ms, self._clock)
        if self.granted.done():  # the caller has given up
            lease.release(499)
        else:
            self.granted.set_result(lease)

    def reject(self, error: ErrorResponse) -> None:
        if not self.granted.done():
            self.granted.set_exception(RequestRejected(error))

    def withdraw(self) -> None:
        """Leave the queue, or release a slot that was granted already."""
        if self.granted.done() and not self.granted.cancelled():
            if self.granted.exception() is None:
                self.granted.result().release(499)
        elif self.backend is not None:
            self.backend.withdraw(self)
