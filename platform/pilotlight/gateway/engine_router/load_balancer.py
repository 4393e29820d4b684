"""Data plane of a router: one route, one backend per endpoint, and a strategy that picks one of them."""

import asyncio
from collections.abc import Mapping
from typing import Final

from pilotlight.gateway.auth import AccessAdmission, FileAdmission
from pilotlight.gateway.engine_router.prefill_stage import PrefillStage
from pilotlight.gateway.engine_router.settings import RouterSettings
from pilotlight.gateway.engine_router.strategy import PROMPT_SEARCH_BYTES, EndpointPicker
from pilotlight.gateway.metrics_and_reports import log
from pilotlight.gateway.proxy.backend import LiveBackend, PendingRequest
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.gateway.proxy.prepare_request import LiveRoute
from pilotlight.gateway.proxy.proxied_request import ProxiedRequest
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


def _log_problem(problem: str) -> None:
    log("access", problem, level="ERROR")


class RouterDataPlane(DataPlane):
    """Sends every request except those for the router's own pages to the engines."""

    def __init__(self, settings: RouterSettings) -> None:
        # No messages: a router discovers its endpoints by itself.
        file = settings.access_file
        admission = FileAdmission(file, settings.proxies, _log_problem) if file else AccessAdmission()
        super().__init__(lambda wake: None, lambda unreachable: None, admission)
        self._target = settings.decoder if settings.disaggregated else settings.engine
        self.key: RouteKey = (settings.namespace, self._target)
        self._picker = EndpointPicker(settings.strategy)
        self._prefill = PrefillStage(settings, self._submit_by_strategy, TIMEOUT_S) if settings.disaggregated else None
        self._endpoints: tuple[tuple[Replica, ...], tuple[Replica, ...]] | None = None
        self.pages["ready"] = self._ready

    def set_endpoints(self, engines: tuple[Replica, ...], decoders: tuple[Replica, ...]) -> bool:
        """Replace the endpoints; return whether they have changed."""
        if (engines, decoders) == self._endpoints:
            return False
        self._endpoints = (engines, decoders)
        usable = engines
        if self._prefill is not None:
            self._prefill.replicas = engines
            usable = decoders if engines else ()
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
        elif self._prefill is not None and isinstance(request, ProxiedRequest) and self._prefill.takes(request):
            self._prefill.start(request)
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
            self._submit_by_strategy(request)
        else:
            asyncio.get_running_loop().call_later(BODY_POLL_S, self._await_body, request, until)

    def _submit_by_strategy(self, request: PendingRequest, front: bool = False) -> None:
        backends = self._healthy_backends()
        if not backends:
            self.dispatch(request, front)
            return
        prefix = b""
        if self._picker.reads_body and isinstance(request, ProxiedRequest):
            prefix = request.body_prefix(PROMPT_SEARCH_BYTES)
        loads = {name: backend.counts.load for name, backend in backends.items()}
        chosen = backends[self._picker.pick(loads, prefix)]
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

    def _sweep(self) -> None:
        if self._prefill is not None:
            self._prefill.sweep()
        super()._sweep()

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
