"""The gateway in a pod: cluster objects → routing table → data plane → load reports → KEDA and peers.

It is ready once everything is listed and the table is in force. On SIGTERM it becomes unready at once, still accepts
connections for a while, drains, and exits.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.cluster.cluster_routes import ClusterState
from pilotlight.gateway.cluster.demand import Demand, GatewayPeers, LoadReporter
from pilotlight.gateway.cluster.keda_scaler import KedaScaler
from pilotlight.gateway.cluster.kube_api import KubeApi
from pilotlight.gateway.cluster.quota_exchange import QuotaExchange
from pilotlight.gateway.cluster.settings import ClusterSettings
from pilotlight.gateway.control_link import Unreachable
from pilotlight.gateway.listeners import BACKLOG, Address, bind, bind_ipv6
from pilotlight.gateway.metrics_and_reports import log
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.gateway.routing_table import Route, Table
from pilotlight.wire.prometheus_text import CONTENT_TYPE

# Longer than an ingress keeps idle connections (Envoy: 1 h): if the gateway closed first, a request could meet a
# connection that is being closed.
IDLE_S: Final = 3900.0
BUFFER_SHARE: Final = 4  # 1/4 of the memory for buffered bodies: a body being sent is in memory twice
QUIET_S: Final = 2.0  # without new connections: clients know that the pod is leaving
LEAVE_MOST: Final = 6  # times `leave_s`, for a cluster that is slow to update its endpoints


class ClusterGateway:
    """To be created in the event loop that it runs on."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._api = KubeApi(settings.api, settings.credentials)
        self._state = ClusterState(self._api, settings, self._changed)
        self._demand = Demand()
        admission = AccessAdmission(
            lambda route, reason: self._load_reporter.metrics.rejected(route, reason), trusted=settings.proxies
        )
        self._plane = DataPlane(lambda wake: self._load_reporter.on_wake(wake), _log_unreachable, admission)
        self._plane.idle_s = IDLE_S
        self._plane.buffer_budget.limit = settings.memory // BUFFER_SHARE
        self._last_accept = 0.0  # time of the last accepted connection
        self._peers = GatewayPeers(
            settings.address, settings.peer_port, lambda peer, loads: self._load_reporter.on_peer_loads(peer, loads),
            QuotaExchange(admission, self._plane.route),
        )  # fmt: skip
        self._scaler = KedaScaler(self._demand, lambda: self._load_reporter.refresh(), self._plane.clock)
        self._load_reporter = LoadReporter(self._plane, self._demand, self._peers.broadcast, self._scaler.notify)
        self._load_reporter.metrics.tokens.on_spent = admission.spend
        self._pages = StatusServer(self.not_ready_reason, self._load_reporter.page, self._peers.app())
        self._routes: tuple[Route, ...] | None = None
        self._due = False
        self._published, self._stopping = asyncio.Event(), asyncio.Event()
        self._servers: list[asyncio.Server] = []

    async def run(self) -> None:
        """Serve until stopped. Raises the error of a failed task: a gateway that does not watch must restart."""
        settings, loop = self._settings, asyncio.get_running_loop()
        await self._pages.start(settings.host, settings.status_port, settings.peer_port)
        watches = asyncio.gather(*(each.run() for each in self._state.informers))
        serving, stopping = loop.create_task(self._serve()), loop.create_task(self._stopping.wait())
        tasks: list[asyncio.Future[Any]] = [watches, serving, stopping]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._drain()
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._load_reporter.close()
            await self._peers.close()
            await self._pages.close()
            await self._api.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def stop(self) -> None:
        """Become unready; `run` returns when requests in flight are finished."""
        self._stopping.set()

    def not_ready_reason(self) -> str:
        """Return why the gateway is not ready; empty: it is."""
        if self._stopping.is_set():
            return "it is shutting down"
        if unsynced := self._state.unsynced:
            return f"not listed yet: {', '.join(unsynced)}"
        return "" if self._servers else "it is not listening yet"

    async def _serve(self) -> None:
        """Listen once the first table is there: until then every service would be unknown."""
        await self._published.wait()
        settings = self._settings
        loop = asyncio.get_running_loop()
        await self._scaler.start(Address(settings.host, settings.scaler_port))
        for listener in _bind_both(Address(settings.host, settings.http_port)):
            self._servers.append(await loop.create_server(self._accept, sock=listener, backlog=BACKLOG))
        log("gateway.listening", f"{len(self._routes or ())} services", http_port=settings.http_port, pod=settings.pod)
        await self._stopping.wait()

    def _accept(self) -> asyncio.Protocol:
        self._last_accept = self._plane.clock()
        return self._plane.protocol_factory(None)()

    def _changed(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._due = False
        pods = self._state.pods()
        self._peers.set_peers(pods)
        self._demand.retain(pods)
        if self._state.unsynced:
            return
        starting = {key: each.deadline_s for key, each in self._state.workloads_by_key().items() if each.starting}
        if self._demand.set_starting(starting, self._plane.clock()):
            self._scaler.notify()
        routes = self._state.routes()
        if routes != self._routes:
            self._routes = routes
            table = Table(self._plane.generation + 1, routes)
            self._plane.publish(table)
            self._load_reporter.metrics.prune(table)
        self._published.set()

    async def _drain(self) -> None:
        self.stop()
        end = self._plane.clock() + self._settings.drain_s
        self._plane.closing = True
        log("gateway.leaving", f"not ready, accepts requests for another {self._settings.leave_s:g} s or longer")
        if self._servers:
            await self._leave(self._settings.leave_s)
        for server in self._servers:
            server.close()
        await self._scaler.close()
        await self._plane.drain(end - self._plane.clock())
        log("gateway.ended", "no requests in flight")

    async def _leave(self, seconds: float) -> None:
        """Serve new connections until none has come for a while: proxies remove the endpoint one after the other.

        Connections are closed after each response by now, so no new connections means no more clients.
        """
        last = self._plane.clock() + min(seconds * LEAVE_MOST, self._settings.drain_s)
        await asyncio.sleep(seconds)
        while (left := min(self._last_accept + min(QUIET_S, seconds), last) - self._plane.clock()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)


class StatusServer:
    """Status port with /healthz, /readyz and /metrics; `peers` has a port of its own.

    `not_ready_reason` returns why the gateway is not ready, `metrics` the page.
    """

    def __init__(
        self, not_ready_reason: Callable[[], str], metrics: Callable[[], bytes], peers: web.Application
    ) -> None:
        async def healthz(request: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def readyz(request: web.Request) -> web.Response:
            reason = not_ready_reason()
            return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

        async def metrics_page(request: web.Request) -> web.Response:
            return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE})

        app = web.Application()
        app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics_page)])
        self._runners = [
            web.AppRunner(each, access_log=None, handle_signals=False, shutdown_timeout=1.0) for each in (app, peers)
        ]

    async def start(self, host: str, status_port: int, peer_port: int) -> None:
        for runner, port in zip(self._runners, (status_port, peer_port), strict=True):
            await runner.setup()
            for listener in _bind_both(Address(host, port)):
                await web.SockSite(runner, listener).start()

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


async def run(settings: ClusterSettings) -> None:
    """Run a gateway until a signal."""
    gateway = ClusterGateway(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, gateway.stop)
    await gateway.run()


def _bind_both(address: Address) -> list[socket.socket]:
    """Bind an address and, if the machine has IPv6, its IPv6 equivalent."""
    equivalent = address.ipv6_equivalent
    sockets = [bind(address), bind_ipv6(equivalent) if equivalent else None]
    return [listener for listener in sockets if listener is not None]


def _log_unreachable(message: Unreachable) -> None:
    """Log only: a replica that is gone for good leaves its EndpointSlice."""
    log("gateway.unreachable", f"{message.replica}: {message.reason}", level="WARNING")
