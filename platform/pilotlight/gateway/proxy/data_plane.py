"""Data plane of one gateway process: routing tables in, requests through, counts out. Used from one event loop.

A request goes from client_connection through prepare_request, backend and upstream to a replica; its response returns
through proxied_request. The process (listeners, control_link, auth, metrics_and_reports) uses only this class.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from msgspec import structs

from pilotlight.gateway.control_link import Report, Unreachable, Wake
from pilotlight.gateway.proxy.backend import BufferBudget, LiveBackend, PendingRequest
from pilotlight.gateway.proxy.client_connection import IDLE_TIMEOUT_S, ClientConnection
from pilotlight.gateway.proxy.interfaces import Downstream, ObservedRequest
from pilotlight.gateway.proxy.prepare_request import LiveRoute, RoutingState
from pilotlight.gateway.proxy.replica_lease import Lease, LeaseRequest
from pilotlight.gateway.proxy.response_observers import UNOBSERVED, ResponseObserver, chain
from pilotlight.gateway.proxy.responses import (
    NO_REVISION,
    NO_ROUTE,
    TIMED_OUT,
    Admission,
    ErrorResponse,
    PageHandler,
    RequestRejected,
    unknown_tag,
)
from pilotlight.gateway.proxy.upstream import IDLE_S, LiveReplica
from pilotlight.gateway.routing_table import Route, RouteKey, Table, tag_of

__all__ = ["Admission", "DataPlane", "ErrorResponse", "Lease", "PageHandler", "RequestRejected", "RouteKey"]

SWEEP_S: Final = 0.25  # precision of timeouts


class DataPlane:
    """`pages` are the gateway's own pages by first path segment, such as `metrics`; `healthz` is always there."""

    def __init__(
        self,
        on_wake: Callable[[Wake], None],
        on_unreachable: Callable[[Unreachable], None],
        admission: Admission,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pages: dict[str, PageHandler] = {"healthz": lambda: (200, "text/plain", b"ok\n")}
        self.loopback_pages: frozenset[str] = frozenset()  # answered to clients on this machine only
        # Called at the first request after an empty report: the reporter's timer rests in between.
        self.on_busy: Callable[[], None] = lambda: None
        self._busy = False
        # Each builds an observer of a request to an observed route, or returns None.
        self.observers: list[Callable[[ObservedRequest], ResponseObserver | None]] = []
        self.admission = admission
        self.clock = clock
        self.clients: set[Downstream] = set()
        self.closing = False
        self.idle_s: float = IDLE_TIMEOUT_S  # of client connections
        self.buffer_budget = BufferBudget()
        self.routing = RoutingState(Table(), {})
        self._on_wake = on_wake
        self._on_unreachable = on_unreachable
        self._backends: dict[tuple[RouteKey, str], LiveBackend] = {}
        self._draining: list[LiveBackend] = []  # removed from the table, with requests in flight
        self._reported = clock()
        random = os.urandom(10).hex()
        # The rest of a UUID is a number: servers with starlette-context, as llama.cpp's in Python, refuse other ids.
        self._id_prefix = f"{random[:8]}-{random[8:12]}-4{random[13:16]}-8{random[17:]}"
        self._numbers = count(1)
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def generation(self) -> int:
        """Generation of the table in force."""
        return self.routing.generation

    def publish(self, table: Table) -> None:
        """Replace the routing table; once it returns, no request goes to a replica that the table lacks."""
        removed, routes = self._backends, self.routing.routes
        self._backends = {}
        self.routing = RoutingState(table, {})
        for route in table.routes:
            key = (route.namespace, route.name)
            backends = {}
            for config in route.backends:
                backend = removed.pop((key, config.revision), None)
                backend = backend or LiveBackend(key, config, self._wake, self.clock, self.buffer_budget)
                backends[config.revision] = self._backends[key, config.revision] = backend
            self.routing.routes[key] = LiveRoute(route, backends, routes.get(key))
        stranded = [request for backend in removed.values() for request in backend.remove()]
        self._draining += removed.values()
        for route in table.routes:
            for config in route.backends:
                self._backends[(route.namespace, route.name), config.revision].update(config)
        for request in stranded:  # after every backend is up to date: they may go to another revision
            self.dispatch(request)

    def protocol_factory(self, port_route: RouteKey | None, loopback: bool = False) -> Callable[[], asyncio.Protocol]:
        """Return the protocol factory of a listener: of one route's own port, or (None) of all routes.

        `loopback`: it is bound to a loopback address.
        """
        return lambda: ClientConnection(self, port_route, loopback)

    def route(self, key: RouteKey) -> Route | None:
        live = self.routing.routes.get(key)
        return live.route if live is not None else None

    def dispatch(self, request: PendingRequest, front: bool = False) -> None:
        """Submit a request to its route in the table in force; `front`: ahead of the queue."""
        route = self.routing.routes.get(request.key)
        if route is None:
            request.reject(NO_ROUTE)
        else:
            self.submit(request, route, request.tag, front)

    def submit(self, request: PendingRequest, route: LiveRoute, tag: str, front: bool = False) -> None:
        """Submit a request to the backend of its tag, or to one chosen by weight."""
        if not self._busy:
            self.mark_busy()
        backend = route.choose(tag)
        if backend is None:
            request.reject(unknown_tag(tag) if tag else NO_REVISION)
        elif front:
            backend.resubmit(request, self.clock())
        else:
            backend.submit(request, self.clock())

    async def acquire(self, route: Route, revision: str | None, headers: Mapping[str, str], deadline: float) -> Lease:
        """Wait for a slot on a replica, for other protocols than HTTP/1.1: same choice, same queue, same limits.

        `revision` is a tag or a name; None: by the tag headers, else by weight. `deadline` is on the plane's clock.
        Raises RequestRejected; admission is left to the caller. Cancelling leaves the queue.
        """
        request = LeaseRequest((route.namespace, route.name), revision or tag_of(headers), self.clock)
        self.dispatch(request)
        try:
            async with asyncio.timeout(max(0.0, deadline - self.clock())):
                return await asyncio.shield(request.granted)
        except TimeoutError:
            request.withdraw()
            raise RequestRejected(TIMED_OUT) from None
        except asyncio.CancelledError:
            request.withdraw()
            raise

    def observe(self, request: ObservedRequest) -> ResponseObserver | None:
        """Return the observer of a request; None: it has none, and its response stays as it is."""
        live = request.prepared.route
        may_rename = request.method == "POST" and live is not None and bool(live.route.models or live.route.adapters)
        return chain(build(request) for build in self.observers) or (UNOBSERVED if may_rename else None)

    def mark_busy(self) -> None:
        self._busy = True
        self.on_busy()

    def report_unreachable(self, replica: LiveReplica, reason: str) -> None:
        self._on_unreachable(Unreachable(replica.id, reason))

    def new_request_id(self) -> str:
        return f"{self._id_prefix}-{next(self._numbers):012x}"

    def loads(self) -> dict[RouteKey, int]:
        """Return the requests queued or in flight, by namespace and workload."""
        loads: dict[RouteKey, int] = {}
        for backend in (*self._backends.values(), *self._draining):
            workload = (backend.key[0], backend.config.workload)
            if backend.counts.load:
                loads[workload] = loads.get(workload, 0) + backend.counts.load
        return loads

    def _wake(self, wake: Wake) -> None:
        now = self.clock()
        active = (each.activity(now) for each in self._backends.values() if each.counts.active)
        self._on_wake(structs.replace(wake, active=tuple(active)))

    def report(self, now: float) -> Report:
        """Return the counts since the last call; backends without requests are left out."""
        seconds, self._reported = now - self._reported, now
        backends = [*self._backends.values(), *self._draining]
        candidates = (
            backend.counts.take_report(
                backend.key, backend.config.workload, backend.config.revision, len(backend.waiting), now
            )
            for backend in backends
        )
        reports = tuple(report for report in candidates if report is not None)
        adapters = (
            counts.take_report(backend.key, backend.config.workload, model, 0, now)
            for backend in backends
            for model, counts in backend.adapters.items()
        )
        self._draining = [backend for backend in self._draining if backend.counts.load]
        self._busy = bool(reports)
        return Report(seconds, reports, adapters=tuple(report for report in adapters if report is not None))

    def add_client(self, client: Downstream) -> None:
        self.clients.add(client)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Apply timeouts; stops while there are no connections."""
        now = self.clock()
        for client in list(self.clients):
            client.check_timeouts(now)
        replicas = [replica for backend in self._backends.values() for replica in backend.replicas if replica.idle]
        for replica in replicas:
            replica.close_idle(before=now - IDLE_S)
        self._sweeper = None
        if self.clients or replicas:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def drain(self, seconds: float) -> None:
        """Close connections after their responses; return when all are answered, or after `seconds`."""
        self.closing = True
        end = asyncio.get_running_loop().time() + seconds
        while any(client.busy for client in self.clients) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for client in list(self.clients):
            client.close()
        for backend in self._backends.values():
            for replica in backend.replicas:
                replica.close_idle()
        if self._sweeper is not None:
            self._sweeper.cancel()
