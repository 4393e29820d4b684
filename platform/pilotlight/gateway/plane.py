"""The data plane of one gateway process: tables in, requests through, counts out. Used from one event loop.

The process around it (listeners, the link to the control side, access, metrics) sees nothing but this class.

    connection → preparing → choice → backend → replica → upstream        a request
    upstream → exchange → connection                                      its answer
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from pilotlight.gateway.backend import Asker, LiveBackend
from pilotlight.gateway.choice import LiveRoute
from pilotlight.gateway.connection import IDLE_S as CLIENT_IDLE_S
from pilotlight.gateway.connection import Client
from pilotlight.gateway.gate import Gate, Refusal, Refused
from pilotlight.gateway.lease import Lease, LeaseRequest
from pilotlight.gateway.messages import Report, Unreachable, Wake
from pilotlight.gateway.preparing import Landscape
from pilotlight.gateway.replica import IDLE_S, LiveReplica
from pilotlight.gateway.replies import LATE, NO_REVISION, NO_ROUTE, no_tag
from pilotlight.gateway.room import Room
from pilotlight.gateway.routing import Key, tag_of
from pilotlight.gateway.table import Route, Table

__all__ = ["Gate", "Key", "Lease", "OwnPage", "Plane", "Refusal", "Refused"]

OwnPage = Callable[[], tuple[int, str, bytes]]  # status, content type, body
SWEEP_S: Final = 0.25  # how exactly timeouts are kept


class Plane:
    """`own` are the gateway's pages by first segment, such as `metrics`; `healthz` is there from the start."""

    def __init__(
        self,
        on_wake: Callable[[Wake], None],
        on_unreachable: Callable[[Unreachable], None],
        gate: Gate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.own: dict[str, OwnPage] = {"healthz": lambda: (200, "text/plain", b"ok\n")}
        # Called with the first request after a report that found nothing: whoever reports may sleep until then.
        self.on_busy: Callable[[], None] = lambda: None
        self._busy = False
        self.gate = gate
        self.clock = clock
        self.clients: set[Client] = set()
        self.closing = False
        self.idle_s = CLIENT_IDLE_S  # after which a client's connection is closed
        self.room = Room()
        self.landscape = Landscape(Table(), {})
        self._on_wake = on_wake
        self._on_unreachable = on_unreachable
        self._backends: dict[tuple[Key, str], LiveBackend] = {}
        self._leaving: list[LiveBackend] = []  # in no table any more, but some of their requests are still here
        self._reported = clock()
        self._id_prefix = os.urandom(6).hex()
        self._numbers = count(1)
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def generation(self) -> int:
        """Of the table in force."""
        return self.landscape.generation

    def publish(self, table: Table) -> None:
        """Takes effect before it returns: from then on no request goes to a replica that the table lacks."""
        before, routes = self._backends, self.landscape.routes
        self._backends = {}
        self.landscape = Landscape(table, {})
        for route in table.routes:
            key = (route.namespace, route.name)
            lives = {}
            for config in route.backends:
                live = before.pop((key, config.revision), None)
                live = live or LiveBackend(key, config, self._on_wake, self.clock, self.room)
                lives[config.revision] = self._backends[key, config.revision] = live
            self.landscape.routes[key] = LiveRoute(route, lives, routes.get(key))
        self._settle(table, before)

    def _settle(self, table: Table, gone: dict[tuple[Key, str], LiveBackend]) -> None:
        """Everybody who waits goes on, waits further, looks for another revision, or is told that there is none."""
        stranded = [asker for live in gone.values() for asker in live.remove()]
        self._leaving += gone.values()
        for route in table.routes:
            for config in route.backends:
                self._backends[(route.namespace, route.name), config.revision].update(config)
        for asker in stranded:
            self.dispatch(asker)

    def handler(self, route_key: Key | None) -> Callable[[], asyncio.Protocol]:
        """Makes the protocol of a listener: of one route's own port, or (None) of the address of all of them."""
        return lambda: Client(self, route_key)

    def route(self, key: Key) -> Route | None:
        live = self.landscape.routes.get(key)
        return live.route if live is not None else None

    def dispatch(self, asker: Asker, first: bool = False) -> None:
        """To the backend of its tag, or to the one whose turn it is; `first`: ahead of those who wait there."""
        route = self.landscape.routes.get(asker.key)
        if route is None:
            asker.refuse(NO_ROUTE)
        else:
            self.place(asker, route, asker.tag, first)

    def place(self, asker: Asker, route: LiveRoute, tag: str, first: bool = False) -> None:
        """As `dispatch`, for one whose route is known to be in the table."""
        if not self._busy:
            self.busy()
        backend = route.choose(tag)
        if backend is None:
            asker.refuse(no_tag(tag) if tag else NO_REVISION)
        elif first:
            backend.enter_first(asker, self.clock())
        else:
            backend.enter(asker, self.clock())

    async def acquire(self, route: Route, revision: str | None, headers: Mapping[str, str], deadline: float) -> Lease:
        """A place on a replica, for other protocols than HTTP/1.1: same choice, same holding, same limits.

        `revision` is a tag or a name; None: as the tag headers say, else by weight. `deadline` is on the plane's
        clock. Raises Refused; the gate is the caller's to ask. Cancelling gives the place in the line back.
        """
        request = LeaseRequest((route.namespace, route.name), revision or tag_of(headers), self.clock)
        self.dispatch(request)
        try:
            async with asyncio.timeout(max(0.0, deadline - self.clock())):
                return await asyncio.shield(request.granted)
        except TimeoutError:
            request.withdraw()
            raise Refused(LATE) from None
        except asyncio.CancelledError:
            request.withdraw()
            raise

    def busy(self) -> None:
        """Whoever reports is woken by the first request."""
        self._busy = True
        self.on_busy()

    def unreachable(self, replica: LiveReplica, reason: str) -> None:
        self._on_unreachable(Unreachable(replica.id, reason))

    def new_id(self) -> str:
        """For a request whose client gave it none."""
        return f"{self._id_prefix}-{next(self._numbers):x}"

    def loads(self) -> dict[Key, int]:
        """Requests that are here at this moment, waiting or in flight, by namespace and workload."""
        found: dict[Key, int] = {}
        for live in (*self._backends.values(), *self._leaving):
            workload = (live.key[0], live.config.workload)
            if live.counts.load:
                found[workload] = found.get(workload, 0) + live.counts.load
        return found

    def report(self, now: float) -> Report:
        """What happened since the last call; a backend without requests is left out."""
        seconds, self._reported = now - self._reported, now
        backends = [*self._backends.values(), *self._leaving]
        told = (
            live.counts.drain(live.key, live.config.workload, live.config.revision, len(live.waiting), now)
            for live in backends
        )
        reports = tuple(report for report in told if report is not None)
        self._leaving = [live for live in self._leaving if live.counts.load]
        self._busy = bool(reports)
        return Report(seconds, reports)

    def join(self, client: Client) -> None:
        self.clients.add(client)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Ends what is overdue; rests when there is nothing left that could be."""
        now = self.clock()
        for client in list(self.clients):
            client.end_if_overdue(now)
        replicas = [replica for live in self._backends.values() for replica in live.replicas if replica.idle]
        for replica in replicas:
            replica.close_idle(before=now - IDLE_S)
        self._sweeper = None
        if self.clients or replicas:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def drain(self, seconds: float) -> None:
        """Every answer closes its connection from here on; returns when all are given, or after `seconds`."""
        self.closing = True
        end = asyncio.get_running_loop().time() + seconds
        while any(client.busy for client in self.clients) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for client in list(self.clients):
            client.close()
        for live in self._backends.values():
            for replica in live.replicas:
                replica.close_idle()
        if self._sweeper is not None:
            self._sweeper.cancel()
