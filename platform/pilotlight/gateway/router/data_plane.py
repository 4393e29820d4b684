"""Data plane of a router: one route, one backend per endpoint, and a strategy that picks one of them.

Endpoints come from files that the local platform writes, or in a cluster from DNS; health checks select among them.
"""

import asyncio
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import MsgspecError, json

from pilotlight.contract import HTTP_PORT
from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.proxy.backend import LiveBackend, PendingRequest
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.gateway.proxy.proxied_request import ProxiedRequest
from pilotlight.gateway.proxy.revision_choice import LiveRoute
from pilotlight.gateway.router.strategy import PROMPT_SEARCH_BYTES, EndpointPicker, RouterSettings
from pilotlight.gateway.routing_table import (
    Backend,
    PageMatch,
    Replica,
    Route,
    RouteKey,
    RouteMatch,
    RouteMatcher,
    Table,
)

PAGES: Final = {"/ready": "ready", "/healthz": "healthz", "/metrics": "metrics"}
TIMEOUT_S: Final = 3600.0  # generation may take long; the router's clients have timeouts of their own
BODY_WAIT_S: Final = 0.05  # for a body that arrives after its head
BODY_POLL_S: Final = 0.002
NO_ENDPOINT: Final = "no-endpoint"
# Of our predictor, then of other engines. A server that has neither is healthy if it answers at all.
HEALTH_PATHS: Final = ("/v2/health/ready", "/health")
HEALTH_S: Final = 5.0
SERVICE_PORT: Final = 80  # of a Kubernetes Service


class RouterDataPlane(DataPlane):
    """Sends every request except those for the router's own pages to the engines."""

    def __init__(self, settings: RouterSettings) -> None:
        # No messages: a router discovers its endpoints by itself.
        super().__init__(lambda wake: None, lambda unreachable: None, AccessAdmission())
        self._target = settings.decoder if settings.disaggregated else settings.engine
        self.key: RouteKey = (settings.namespace, self._target)
        self._disaggregated = settings.disaggregated
        self._picker, self._prefill_picker = EndpointPicker(settings.strategy), EndpointPicker("least_loaded")
        self._prefills: tuple[Replica, ...] = ()
        self._prefilling: dict[str, list[ProxiedRequest]] = {}
        self._endpoints: tuple[Replica, ...] | None = None
        self.pages["ready"] = self._ready

    def set_endpoints(self, engines: tuple[Replica, ...], decoders: tuple[Replica, ...]) -> bool:
        """Replace the endpoints; return whether they have changed."""
        endpoints, prefills = (decoders, engines) if self._disaggregated else (engines, ())
        if (endpoints, prefills) == (self._endpoints, self._prefills):
            return False
        self._endpoints, self._prefills = endpoints, prefills
        self._prefilling = {each.id: self._prefilling.get(each.id, []) for each in prefills}
        usable = endpoints if prefills or not self._disaggregated else ()
        backends = tuple(Backend(replica.id, self._target, 0, (replica,)) for replica in usable)
        if not backends:
            problem = f"no endpoint of {self._target} is ready"
            backends = (Backend(NO_ENDPOINT, self._target, 100, unavailable=problem),)
        self.publish(Table(self.generation + 1, (Route(*self.key, backends, timeout_s=TIMEOUT_S),)))
        return True

    def publish(self, table: Table) -> None:
        super().publish(table)
        self.routing.matcher = _SingleRouteMatcher(table, self.key)

    def submit(self, request: PendingRequest, route: LiveRoute, tag: str, front: bool = False) -> None:
        """Submit a request to the endpoint that the strategy picks; if that reads the prompt, wait for the body."""
        if not self._healthy_backends():
            super().submit(request, route, tag, front)
        elif self._picker.reads_body and isinstance(request, ProxiedRequest) and not front:
            self._await_body(request, self.clock() + BODY_WAIT_S)
        else:
            self._submit_by_strategy(request, front)

    def _await_body(self, request: ProxiedRequest, until: float) -> None:
        if request.client.request is not request:
            return  # its client has disconnected, or its body is malformed
        if (
            request.body_complete
            or len(request.body_prefix(PROMPT_SEARCH_BYTES)) >= PROMPT_SEARCH_BYTES
            or self.clock() >= until
        ):
            self._submit_by_strategy(request, False)
        else:
            asyncio.get_running_loop().call_later(BODY_POLL_S, self._await_body, request, until)

    def _submit_by_strategy(self, request: PendingRequest, front: bool) -> None:
        backends = self._healthy_backends()
        if not backends:
            self.dispatch(request, front)
            return
        prefix = b""
        if self._picker.reads_body and isinstance(request, ProxiedRequest):
            prefix = request.body_prefix(PROMPT_SEARCH_BYTES)
        loads = {name: backend.counts.load for name, backend in backends.items()}
        chosen = backends[self._picker.pick(loads, prefix)]
        if self._disaggregated and isinstance(request, ProxiedRequest):
            self._select_prefill(request)
        if not self._busy:
            self.mark_busy()
        if front:
            chosen.resubmit(request, self.clock())
        else:
            chosen.submit(request, self.clock())

    def _healthy_backends(self) -> Mapping[str, LiveBackend]:
        """Return the backends that are healthy; all of them if none is."""
        route = self.routing.routes.get(self.key)
        backends = {name: each for name, each in route.backends.items() if each.replicas} if route is not None else {}
        now = self.clock()
        healthy = {name: each for name, each in backends.items() if each.replicas[0].unhealthy_until <= now}
        return healthy or backends

    def _select_prefill(self, request: ProxiedRequest) -> None:
        """Pick the prefill engine with the fewest unfinished requests and name it in the request's headers."""
        for name, requests in self._prefilling.items():
            self._prefilling[name] = [each for each in requests if not each.finished]
        loads = {name: len(requests) for name, requests in self._prefilling.items()}
        chosen = self._prefill_picker.pick(loads)
        self._prefilling[chosen].append(request)
        replica = next(each for each in self._prefills if each.id == chosen)
        host, port = replica.host, str(replica.port)
        request.set_headers({"X-Prefill-Host": host, "X-Prefill-Port": port, "X-Prefiller-Host-Port": f"{host}:{port}"})

    def _ready(self) -> tuple[int, str, bytes]:
        ready = bool(self._healthy_backends())
        return (200, "text/plain", b"ready\n") if ready else (503, "text/plain", b"no endpoint is ready\n")


class _SingleRouteMatcher(RouteMatcher):
    """Matches every path except the router's own pages to the one route."""

    def __init__(self, table: Table, key: RouteKey) -> None:
        super().__init__(table)
        self._key = key

    def match(
        self, target: str, headers: Mapping[str, str], port_route: RouteKey | None
    ) -> RouteMatch | PageMatch | None:
        page = PAGES.get(target.partition("?")[0])
        return PageMatch(page) if page else RouteMatch(self._key, "", target)


class EndpointFile:
    """`<folder>/<namespace>/<workload>.json`, a list of Replica; read again after it was replaced."""

    def __init__(self, folder: Path, namespace: str, workload: str) -> None:
        self._path = folder / namespace / f"{workload}.json"
        self._stamp: tuple[int, int] | None = None
        self._known: tuple[Replica, ...] = ()

    async def discover(self) -> tuple[Replica, ...]:
        """Return the replicas, none without a file; an unreadable file changes nothing."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._stamp:
                self._known = json.decode(self._path.read_bytes(), type=tuple[Replica, ...])
                self._stamp = stamp
        except FileNotFoundError:
            self._known, self._stamp = (), None
        except (OSError, MsgspecError):
            pass
        return self._known


class DnsEndpoints:
    """The pods behind the workload's headless Service; without one, its ClusterIP Service."""

    def __init__(self, namespace: str, workload: str) -> None:
        self._names = ((f"{workload}-pods.{namespace}", HTTP_PORT), (f"{workload}.{namespace}", SERVICE_PORT))
        self._known: tuple[Replica, ...] = ()

    async def discover(self) -> tuple[Replica, ...]:
        """Return the replicas, none for unknown names; a temporary DNS failure changes nothing."""
        for name, port in self._names:
            try:
                hosts = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except socket.gaierror as error:
                if error.errno == socket.EAI_AGAIN:
                    return self._known
                continue
            addresses = sorted({str(host[4][0]) for host in hosts})
            self._known = tuple(Replica(f"{address}:{port}", port, address) for address in addresses)
            return self._known
        self._known = ()
        return self._known


async def healthy_ids(replicas: Iterable[Replica]) -> set[str]:
    """Return the ids of the replicas that answer as ready."""
    candidates = list(replicas)
    results = await asyncio.gather(*(is_healthy(replica) for replica in candidates))
    return {replica.id for replica, ready in zip(candidates, results, strict=True) if ready}


async def is_healthy(replica: Replica) -> bool:
    try:
        async with asyncio.timeout(HEALTH_S):
            for path in HEALTH_PATHS:
                status = await _status(replica, path)
                if status != 404:
                    return status == 200
            return True
    except (OSError, TimeoutError, ValueError, IndexError, asyncio.IncompleteReadError):
        return False


async def _status(replica: Replica, path: str) -> int:
    reader, writer = await asyncio.open_connection(replica.host, replica.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {replica.host}\r\nConnection: close\r\n\r\n".encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
