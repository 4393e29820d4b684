"""Demand of each workload over all replicas of the gateway, for KEDA: each replica broadcasts its loads to its peers.

Held requests are reported at once, everything else every second while there are requests; no timer runs otherwise.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final

import aiohttp
from aiohttp import web
from msgspec import DecodeError, Struct, ValidationError, json

from pilotlight.gateway.cluster.quota_exchange import CallerTotal, QuotaExchange
from pilotlight.gateway.control_link import Report, Wake
from pilotlight.gateway.metrics_and_reports import Metrics, Reporter, log
from pilotlight.gateway.proxy.data_plane import DataPlane

WorkloadKey = tuple[str, str]  # namespace and workload
Loads = Mapping[WorkloadKey, int]  # requests waiting or in flight
OWN: Final = ""  # sender name of this pod
STALE_S: Final = 3.0  # a replica without a report for this time counts nothing: three reports are missing
PATH: Final = "/counts"  # POST {"loads": [["models", "iris-predictor", 3]]}
LATE_S: Final = 1.0
MAX_MESSAGE_BYTES: Final = 4 << 20


class Demand:
    """The last reports of all replicas. A listed workload is active, even with load 0: its requests may have finished
    within the second. So is one that starts: KEDA would remove it in the middle of a load that outlasts the cooldown.
    """

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, Loads]] = {}
        self._starts: dict[WorkloadKey, float] = {}  # when a start that is not complete counts as failed

    def record(self, sender: str, loads: Loads, now: float) -> None:
        """Replace the sender's last report."""
        if loads:
            self._reports[sender] = (now, loads)
        else:
            self._reports.pop(sender, None)

    def retain(self, senders: Collection[str]) -> None:
        """Forget the reports of other senders than these."""
        self._reports = {name: report for name, report in self._reports.items() if name == OWN or name in senders}

    def set_starting(self, allowed_s: Mapping[WorkloadKey, float], now: float) -> bool:
        """Set the workloads that start, each with the time that it may take; return whether others did before."""
        before = self._starts
        self._starts = {key: before.get(key, now + seconds) for key, seconds in allowed_s.items()}
        return self._starts != before

    def total(self, key: WorkloadKey, now: float) -> int:
        return sum(loads.get(key, 0) for at, loads in self._reports.values() if now - at < STALE_S)

    def active(self, key: WorkloadKey, now: float) -> bool:
        requested = any(key in loads for at, loads in self._reports.values() if now - at < STALE_S)
        return requested or now < self._starts.get(key, now)


class LoadReporter:
    """From the data plane to demand, peers and /metrics. `broadcast` sends loads to the peers, and what callers have
    spent; `notify` wakes streams that wait for a change of the demand."""

    def __init__(
        self,
        plane: DataPlane,
        demand: Demand,
        broadcast: Callable[[dict[WorkloadKey, int]], None],
        notify: Callable[[], None],
    ) -> None:
        self.metrics = Metrics()
        self.metrics.tokens.from_zero = True
        plane.observers.append(self.metrics.tokens.observe)
        self._plane, self._demand, self._broadcast, self._notify = plane, demand, broadcast, notify
        self._active: frozenset[WorkloadKey] = frozenset()  # workloads with requests within the last second
        self._last_sent: dict[WorkloadKey, int] = {}
        self._reporter = Reporter(plane, self._on_report, lambda report: None)
        start_timer = plane.on_busy

        def on_busy() -> None:
            """Report the first request after an idle time, once it is counted at the end of this loop iteration."""
            start_timer()
            asyncio.get_running_loop().call_soon(self._publish)

        plane.on_busy = on_busy

    def on_wake(self, wake: Wake) -> None:
        """Report at once: a held request has no replica."""
        self._publish()

    def on_peer_loads(self, peer: str, loads: Loads) -> None:
        self._demand.record(peer, loads, self._plane.clock())
        self._notify()

    def refresh(self) -> dict[WorkloadKey, int]:
        """Record and return the current loads; workloads of the last report stay listed, with 0 if need be."""
        loads = dict.fromkeys(self._active, 0) | self._plane.loads()
        self._demand.record(OWN, loads, self._plane.clock())
        return loads

    def page(self) -> bytes:
        """Return /metrics as of the last report: an extra report per scrape would shorten the activity of workloads."""
        return self.metrics.page()[2]

    def close(self) -> None:
        self._reporter.close()

    def _on_report(self, report: Report) -> None:
        self.metrics.add(report)
        self._active = frozenset((each.namespace, each.workload) for each in report.backends)
        self._publish()

    def _publish(self) -> None:
        """Send the loads to peers and streams; an empty report is sent once."""
        loads = self.refresh()
        if loads or self._last_sent:
            self._last_sent = loads
            self._broadcast(loads)
            self._notify()


class LoadsMessage(Struct, frozen=True):
    loads: tuple[tuple[str, str, int], ...] = ()  # namespace, workload, requests
    spent: tuple[CallerTotal, ...] = ()


class GatewayPeers:
    """`on_loads` gets a peer's address and its loads; `quotas` what callers have spent at it.

    Accepted only from pods behind the gateway's headless Service, by the source address of the connection.
    """

    def __init__(self, own: str, port: int, on_loads: Callable[[str, Loads], None], quotas: QuotaExchange) -> None:
        self._own, self._port, self._on_loads, self._quotas = own, port, on_loads, quotas
        self._senders: dict[str, _PeerSender] = {}
        self._session: aiohttp.ClientSession | None = None

    def set_peers(self, addresses: Collection[str]) -> None:
        """Set the peers; missing ones get no more messages and are rejected as senders."""
        peers = set(addresses) - {self._own}
        for removed in self._senders.keys() - peers:
            self._senders.pop(removed).close()
        self._quotas.retain(peers)
        for address in peers - self._senders.keys():
            self._senders[address] = _PeerSender(self._post, address)
            if spent := self._quotas.totals():
                self._senders[address].send(json.encode(LoadsMessage(spent=spent)))

    def broadcast(self, loads: Loads) -> None:
        """Send the loads to all peers; a slow peer skips to the latest."""
        counts = tuple((*key, number) for key, number in loads.items())
        message = json.encode(LoadsMessage(counts, self._quotas.totals()))
        for sender in self._senders.values():
            sender.send(message)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_MESSAGE_BYTES)
        app.router.add_post(PATH, self._receive)
        return app

    async def close(self) -> None:
        self.set_peers(())
        if self._session is not None:
            await self._session.close()

    async def _receive(self, request: web.Request) -> web.Response:
        sender = request.remote or ""
        if sender not in self._senders:
            return web.Response(status=403, text="only replicas of this gateway may report counts\n")
        try:
            message = json.decode(await request.read(), type=LoadsMessage)
        except (DecodeError, ValidationError) as error:
            return web.Response(status=400, text=f"{error}\n")
        self._quotas.receive(sender, message.spent)
        self._on_loads(sender, {(namespace, workload): number for namespace, workload, number in message.loads})
        return web.Response(status=204)

    async def _post(self, address: str, message: bytes) -> None:
        if self._session is None:  # from the address that peers accept, should the pod have several
            connector = aiohttp.TCPConnector(local_addr=(self._own, 0))
            timeout = aiohttp.ClientTimeout(total=LATE_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.post(f"http://{host}:{self._port}{PATH}", data=message) as response:
                if response.status != 204:
                    reason = (await response.text()).strip()
                    problem = f"{address} rejected our counts: {response.status} {reason}"
                    log("gateway.peer", problem, level="WARNING")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log("gateway.peer", f"{address} did not get our counts: {error or type(error).__name__}", level="WARNING")


class _PeerSender:
    """Sends to one peer: one message at a time, and of queued ones only the last."""

    def __init__(self, post: Callable[[str, bytes], Coroutine[Any, Any, None]], address: str) -> None:
        self._post, self._address = post, address
        self._next: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def send(self, message: bytes) -> None:
        self._next = message
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._next is not None:
                message, self._next = self._next, None
                await self._post(self._address, message)
        finally:
            self._task = None
