"""Router component: the gateway's data plane in front of one service's engines, which it discovers by itself.

Every endpoint is a backend of its own, so that the strategy decides among them. With `prefill_decode` a prefill engine
computes the KV cache of the prompt, by the protocol of the engines, and a decoder answers. The router of an
InferenceGraph has one endpoint, in its own process, which executes the graph.
"""

import asyncio
import signal
import socket
from typing import TYPE_CHECKING, Final, Protocol

from pilotlight.gateway.engine_router.endpoint_discovery import DnsEndpoints, EndpointFile, healthy_ids
from pilotlight.gateway.engine_router.load_balancer import RouterDataPlane
from pilotlight.gateway.engine_router.settings import RouterSettings
from pilotlight.gateway.listeners import BACKLOG, Address, bind
from pilotlight.gateway.metrics_and_reports import Metrics, Reporter, log
from pilotlight.gateway.routing_table import Replica

if TYPE_CHECKING:
    from pilotlight.gateway.engine_router.graph_server import GraphServer

REFRESH_S: Final = 0.5  # between two discoveries
DRAIN_S: Final = 30.0


class EndpointSource(Protocol):
    """Discovery of a component's replicas."""

    async def discover(self) -> tuple[Replica, ...]: ...


class EndpointPool:
    """The healthy replicas of one component."""

    def __init__(self, source: EndpointSource, health_check_s: float) -> None:
        self._source, self._interval = source, health_check_s
        self._checked_at = float("-inf")
        self._seen: tuple[Replica, ...] = ()
        self._healthy: set[str] = set()

    async def refresh(self, now: float) -> tuple[Replica, ...]:
        """Return the healthy replicas; new ones are checked at once, the others every `health_check_s`."""
        replicas = await self._source.discover()
        if now - self._checked_at >= self._interval:
            self._checked_at = now
            self._healthy = await healthy_ids(replicas)
        elif added := set(replicas) - set(self._seen):
            self._healthy = (self._healthy - {each.id for each in added}) | await healthy_ids(added)
        self._seen = replicas
        return tuple(replica for replica in replicas if replica.id in self._healthy)


class Router:
    """`/ready` is 503 until every component has a healthy endpoint."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings, self._graph = settings, _graph_server(settings)
        self._engines = self._pool(settings.engine, settings.engine_port)
        self._decoders = self._pool(settings.decoder, settings.decoder_port) if settings.disaggregated else None
        self._plane = RouterDataPlane(settings)
        self._metrics = Metrics()
        self._reporter = Reporter(self._plane, self._metrics.add, lambda report: None)
        self._plane.pages["metrics"] = self._metrics_page
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal. If discovery fails, drain first and raise the error then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        listener = bind(Address(self._settings.host, self._settings.port), "INFERENCE_HTTP_PORT")
        await self._update(loop.time())
        listener.setblocking(False)
        create_server = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
        server = await create_server(self._plane.protocol_factory(self._plane.key), sock=listener, backlog=BACKLOG)
        port = self._settings.port or listener.getsockname()[1]
        log("router.listening", "graph" if self._settings.graph else self._settings.strategy, http_port=port)
        discovery = asyncio.create_task(self._watch_endpoints())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([discovery, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        failure = discovery.exception() if discovery.done() else None
        discovery.cancel()
        if failure is not None:
            log("router.failed", f"{type(failure).__name__}: {failure}", level="ERROR")
        server.close()
        await self._plane.drain(DRAIN_S)
        self._reporter.close()
        if self._graph is not None:
            await self._graph.close()
        log("router.ended", "no requests in flight")
        if failure is not None:
            raise failure

    def _pool(self, workload: str, port: int) -> EndpointPool:
        folder, namespace = self._settings.endpoints, self._settings.namespace
        source: EndpointSource
        if self._graph is not None:
            source = self._graph
        else:
            source = EndpointFile(folder, namespace, workload) if folder else DnsEndpoints(namespace, workload, port)
        return EndpointPool(source, self._settings.health_check_s)

    async def _watch_endpoints(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._update(asyncio.get_running_loop().time())

    async def _update(self, now: float) -> None:
        engines = await self._engines.refresh(now)
        decoders = await self._decoders.refresh(now) if self._decoders is not None else ()
        if self._plane.set_endpoints(engines, decoders):
            names = [replica.id for replica in (*engines, *decoders)]
            log("router.endpoints", f"{len(names)} endpoints are healthy", endpoints=names)

    def _metrics_page(self) -> tuple[int, str, bytes]:
        self._reporter.report()
        return self._metrics.page()


def _graph_server(settings: RouterSettings) -> "GraphServer | None":
    """Return the endpoint of an InferenceGraph; aiohttp is imported for it alone."""
    if not settings.graph:
        return None
    from pilotlight.gateway.engine_router.graph_server import GraphServer

    return GraphServer(settings)


async def run(settings: RouterSettings) -> None:
    """Run a router in the current event loop until a signal."""
    await Router(settings).run()
