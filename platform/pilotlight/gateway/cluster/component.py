"""The gateway in a pod, put together: the cluster's objects → tables → data plane → counts → KEDA and the peers.

    API ──▶ Watched … ──▶ tables ──▶ Plane ◀── requests
                                       │
                       peers ◀──▶ Counting ──▶ Scaler ◀── KEDA

It is ready once everything was listed and its table is in force. On SIGTERM it is unready at once, takes what still
arrives for a while, finishes what it has, and ends.
"""

import asyncio
import signal
from typing import Final

from pilotlight.gateway.addresses import BACKLOG, Address, bind, bind_twin
from pilotlight.gateway.admission import Gatekeeper
from pilotlight.gateway.cluster.api import Api
from pilotlight.gateway.cluster.clients import ProxiedGate
from pilotlight.gateway.cluster.counting import Counting
from pilotlight.gateway.cluster.demand import Demand
from pilotlight.gateway.cluster.pages import Pages
from pilotlight.gateway.cluster.peers import Peers
from pilotlight.gateway.cluster.scaler import Scaler
from pilotlight.gateway.cluster.settings import ClusterSettings
from pilotlight.gateway.cluster.surroundings import Surroundings
from pilotlight.gateway.logs import log
from pilotlight.gateway.messages import Unreachable
from pilotlight.gateway.plane import Plane
from pilotlight.gateway.table import Route, Table

# An ingress keeps connections for the next request, Envoy for an hour. Were we the first to close one, a request on its
# way could meet the closing.
IDLE_S: Final = 3900.0
BODIES: Final = 4  # part of the memory for bodies: one that is sent is here twice, and a pod has more to remember
QUIET_S: Final = 2.0  # nobody has connected for so long: they know that we leave
LEAVE_MOST: Final = 6  # times the usual, for a cluster that is slow to tell


class ClusterGateway:
    """Made within the loop that it runs on."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._api = Api(settings.api, settings.credentials)
        self._around = Surroundings(self._api, settings, self._changed)
        self._demand = Demand()
        gatekeeper = Gatekeeper(lambda route, reason: self._counting.metrics.refused(route, reason))
        self._gate = ProxiedGate(gatekeeper, settings.proxies)
        self._plane = Plane(lambda wake: self._counting.woken(wake), _unreachable, self._gate)
        self._plane.idle_s = IDLE_S
        self._plane.room.most = settings.memory // BODIES
        self._came = 0.0  # when somebody connected last
        self._peers = Peers(settings.address, settings.peer_port, lambda peer, loads: self._counting.heard(peer, loads))
        self._scaler = Scaler(self._demand, lambda: self._counting.refresh(), self._plane.clock)
        self._counting = Counting(self._plane, self._demand, self._peers.tell, self._scaler.ring)
        self._pages = Pages(self.unready, self._counting.page, self._peers.app())
        self._routes: tuple[Route, ...] | None = None
        self._due = False
        self._published, self._stopping = asyncio.Event(), asyncio.Event()
        self._servers: list[asyncio.Server] = []

    async def run(self) -> None:
        """Until it is stopped; raises what broke, since a gateway that watches nothing is worse than a new one."""
        settings, loop = self._settings, asyncio.get_running_loop()
        await self._pages.start(settings.host, settings.status_port, settings.peer_port)
        work = [loop.create_task(each) for each in (self._watch(), self._serve(), self._stop())]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            await self._end()
        finally:
            for task in work:
                task.cancel()
            ended = await asyncio.gather(*work, return_exceptions=True)
            await self._close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def stop(self) -> None:
        """Unready at once; `run` returns when everything in flight is finished."""
        self._stopping.set()

    def unready(self) -> str:
        """Why no request should come; empty: they may."""
        if self._stopping.is_set():
            return "it is leaving"
        if missing := self._around.missing:
            return f"not listed yet: {', '.join(missing)}"
        return "" if self._servers else "it does not listen yet"

    async def _watch(self) -> None:
        await asyncio.gather(*(each.follow() for each in self._around.everything))

    async def _stop(self) -> None:
        await self._stopping.wait()

    async def _serve(self) -> None:
        """Nothing is accepted before the first table: until then every service would be unknown."""
        await self._published.wait()
        settings = self._settings
        loop = asyncio.get_running_loop()
        await self._scaler.start(Address(settings.host, settings.scaler_port))
        address = Address(settings.host, settings.http_port)
        sockets = [bind(address), bind_twin(address.twin) if address.twin else None]
        for listener in sockets:
            if listener is not None:
                self._servers.append(await loop.create_server(self._accept, sock=listener, backlog=BACKLOG))
        log("gateway.listening", f"{len(self._routes or ())} services", http_port=settings.http_port, pod=settings.pod)
        await self._stopping.wait()

    def _accept(self) -> asyncio.Protocol:
        self._came = self._plane.clock()
        return self._plane.handler(None)()

    def _changed(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._due = False
        pods = self._around.pods()
        self._peers.know(pods)
        self._demand.keep(pods)
        if self._around.missing:
            return
        found = self._around.routes()
        if found != self._routes:
            self._routes = found
            table = Table(self._plane.generation + 1, found)
            self._plane.publish(table)
            self._counting.metrics.follow(table)
        self._published.set()

    async def _end(self) -> None:
        self.stop()
        end = self._plane.clock() + self._settings.drain_s
        self._plane.closing = True
        log("gateway.leaving", f"unready, and takes what still arrives for {self._settings.leave_s:g} s or longer")
        if self._servers:
            await self._leave(self._settings.leave_s)
        for server in self._servers:
            server.close()
        await self._scaler.close()
        await self._plane.drain(end - self._plane.clock())
        log("gateway.ended", "nothing is in flight")

    async def _leave(self, seconds: float) -> None:
        """Routes to this pod vanish one after the other: who comes meanwhile is served, on a connection that ends.

        Each request needs a new one by then, so once nobody connects any more everybody knows.
        """
        last = self._plane.clock() + min(seconds * LEAVE_MOST, self._settings.drain_s)
        await asyncio.sleep(seconds)
        while (left := min(self._came + min(QUIET_S, seconds), last) - self._plane.clock()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)

    async def _close(self) -> None:
        self._counting.close()
        await self._peers.close()
        await self._pages.close()
        await self._api.close()


def _unreachable(word: Unreachable) -> None:
    """Its endpoint will go from the slice when it is gone for good; until then it is tried again."""
    log("gateway.unreachable", f"{word.replica}: {word.reason}", level="WARNING")


async def run(settings: ClusterSettings) -> None:
    """Until a signal."""
    gateway = ClusterGateway(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, gateway.stop)
    await gateway.run()
