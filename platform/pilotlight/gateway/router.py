"""A router component: the data plane of the gateway in front of one service's engines, which it finds by itself.

    endpoints ──▶ health ──▶ Table ──▶ RouterPlane ◀── Choice
                                         ▲
    client ──────────────────────────────┘

Every endpoint is a backend of its own, so that the strategy decides among them. With `prefill_decode` a request goes to
a decoder and says by headers which prefill engine was chosen for it: X-Prefill-Host and X-Prefill-Port, and both in
X-Prefiller-Host-Port. The decoder, or a proxy beside it, fetches the prompt's cache from there.
"""

import asyncio
import signal
from typing import Final, Protocol

from pilotlight.gateway.addresses import BACKLOG, Address, bind
from pilotlight.gateway.endpoints import EndpointFile, EndpointNames, healthy
from pilotlight.gateway.logs import log
from pilotlight.gateway.metrics import Metrics
from pilotlight.gateway.reporting import Reporter
from pilotlight.gateway.router_plane import RouterPlane
from pilotlight.gateway.router_settings import RouterSettings
from pilotlight.gateway.table import Replica

LOOK_S: Final = 0.5  # between two looks at who is there
DRAIN_S: Final = 30.0


class Source(Protocol):
    """Where replicas are known."""

    async def find(self) -> tuple[Replica, ...]: ...


class Pool:
    """The replicas of one component, and which of them are well."""

    def __init__(self, source: Source, health_check_s: float) -> None:
        self._source, self._interval = source, health_check_s
        self._checked_at = float("-inf")
        self._seen: tuple[Replica, ...] = ()
        self._well: set[str] = set()

    async def look(self, now: float) -> tuple[Replica, ...]:
        """Newcomers are checked at once, all others when their time has come."""
        found = await self._source.find()
        if now - self._checked_at >= self._interval:
            self._checked_at = now
            self._well = await healthy(found)
        elif newcomers := set(found) - set(self._seen):
            self._well = (self._well - {each.id for each in newcomers}) | await healthy(newcomers)
        self._seen = found
        return tuple(replica for replica in found if replica.id in self._well)


class Router:
    """`/ready` is 503 until every component that is needed has an endpoint that is well."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._engines = Pool(self._source(settings.engine), settings.health_check_s)
        self._decoders = (
            Pool(self._source(settings.decoder), settings.health_check_s) if settings.disaggregated else None
        )
        self._plane = RouterPlane(settings)
        self._metrics = Metrics()
        self._reporter = Reporter(self._plane, self._metrics.add, lambda report: None)
        self._plane.own["metrics"] = self._page
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until a signal; what is in flight is finished even when the looking failed, which is raised then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        listener = bind(Address(self._settings.host, self._settings.port), "INFERENCE_HTTP_PORT")
        await self._update(loop.time())
        server = await loop.create_server(self._plane.handler(self._plane.key), sock=listener, backlog=BACKLOG)
        log("router.listening", f"{self._settings.strategy}", http_port=listener.getsockname()[1])
        looking = asyncio.create_task(self._look())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([looking, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        failure = looking.exception() if looking.done() else None
        looking.cancel()
        if failure is not None:
            log("router.failed", f"{type(failure).__name__}: {failure}", level="ERROR")
        server.close()
        await self._plane.drain(DRAIN_S)
        self._reporter.close()
        log("router.ended", "nothing is in flight")
        if failure is not None:
            raise failure

    def _source(self, workload: str) -> Source:
        folder, namespace = self._settings.endpoints, self._settings.namespace
        return EndpointFile(folder, namespace, workload) if folder else EndpointNames(namespace, workload)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._update(asyncio.get_running_loop().time())

    async def _update(self, now: float) -> None:
        engines = await self._engines.look(now)
        decoders = await self._decoders.look(now) if self._decoders is not None else ()
        if self._plane.serve(engines, decoders):
            names = [replica.id for replica in (*engines, *decoders)]
            log("router.endpoints", f"{len(names)} endpoints are well", endpoints=names)

    def _page(self) -> tuple[int, str, bytes]:
        self._reporter.report()
        return self._metrics.page()


async def run(settings: RouterSettings) -> None:
    """Made within the loop that it runs on."""
    await Router(settings).run()
