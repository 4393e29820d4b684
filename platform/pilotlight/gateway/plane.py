"""The data plane of one gateway process: tables in, requests through, counts out. Used from one event loop.

The process around it (listeners, the link to the control side, access, metrics) sees nothing but this class.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from pilotlight.gateway.gate import Gate, Refusal, Refused
from pilotlight.gateway.messages import Report, Unreachable, Wake
from pilotlight.gateway.table import Replica, Route, Table

__all__ = ["Gate", "Key", "Lease", "OwnPage", "Plane", "Refusal", "Refused"]

Key = tuple[str, str]  # namespace and name of a route
OwnPage = Callable[[], tuple[int, str, bytes]]  # status, content type, body


class Lease(Protocol):
    """A place on a replica; given back exactly once, with the HTTP status the answer had (0: none came)."""

    replica: Replica
    cold_ms: int | None  # how long it waited for the first replica; None when there was one

    def release(self, status: int) -> None: ...
    def unreached(self, reason: str) -> None:
        """Instead of `release`: no connection came about. The replica is left alone for a moment, and told as such."""


class Plane:
    """`own` are the gateway's pages by first segment, such as `metrics`; `healthz` is there from the start."""

    def __init__(
        self,
        on_wake: Callable[[Wake], None],
        on_unreachable: Callable[[Unreachable], None],
        gate: Gate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.own: dict[str, OwnPage] = {}
        # Called with the first request after a report that found nothing: whoever reports may sleep until then.
        self.on_busy: Callable[[], None] = lambda: None

    @property
    def generation(self) -> int:
        """Of the table in force."""
        raise NotImplementedError

    def publish(self, table: Table) -> None:
        """Takes effect before it returns: from then on no request goes to a replica that the table lacks."""
        raise NotImplementedError

    def handler(self, route_key: Key | None) -> Callable[[], asyncio.Protocol]:
        """Makes the protocol of a listener: of one route's own port, or (None) of the address of all of them."""
        raise NotImplementedError

    def route(self, key: Key) -> Route | None:
        raise NotImplementedError

    def report(self, now: float) -> Report:
        """What happened since the last call; a backend without requests is left out."""
        raise NotImplementedError

    async def acquire(self, route: Route, revision: str | None, headers: Mapping[str, str], deadline: float) -> Lease:
        """A place on a replica, for other protocols than HTTP/1.1: same choice, same holding, same limits.

        `revision` is a tag or a name; None: as the tag headers say, else by weight. `deadline` is on the plane's
        clock. Raises Refused; the gate is the caller's to ask. Cancelling gives the place in the queue back.
        """
        raise NotImplementedError

    async def drain(self, seconds: float) -> None:
        """No further request is taken on any connection; returns when all are answered, or after `seconds`."""
        raise NotImplementedError
