"""Data plane of a router: one route, one backend per endpoint, and a strategy that picks one of them."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from pilotlight.gateway.auth import AccessAdmission, FileAdmission
from pilotlight.gateway.engine_router.prefill_stage import PrefillStage
from pilotlight.gateway.engine_router.settings import RouterSettings
from pilotlight.gateway.metrics_and_reports import log
from pilotlight.gateway.proxy.backend import LiveBackend, PendingRequest
from pilotlight.gateway.proxy.body_routing import await_prompt
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.gateway.proxy.prefix_index import PrefixIndex, Prompt
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
NO_ENDPOINT: Final = "no-endpoint"


class EndpointPicker:
    """Applies one strategy; keeps the position of the round robin, and the prefixes that each endpoint has."""

    def __init__(self, strategy: str) -> None:
        self.prefixes = PrefixIndex() if strategy == "prefix_aware" else None
        self._round_robin = strategy == "round_robin"
        self._turn = 0

    def pick(self, loads: Mapping[str, int], prompt: Prompt | None = None) -> str:
        """Return one of `loads`, requests at each endpoint by its name, which must not be empty."""
        if self.prefixes is not None and prompt is not None:
            return self.prefixes.pick(loads, prompt)
        fewest = min(loads.values())
        names = sorted(name for name, load in loads.items() if self._round_robin or load == fewest)
        self._turn += 1
        return names[self._turn % len(names)]


class RouterDataPlane(DataPlane):
    """Sends every request except those for the router's own pages to the engines."""

    def __init__(self, settings: RouterSettings) -> None:
        # No messages: a router discovers its endpoints by itself.
        file, report = settings.access_file, partial(log, "access", level="ERROR")
        admission = FileAdmission(file, settings.proxies, report) if file else AccessAdmission()
        super().__init__(lambda wake: None, lambda unreachable: None, admission)
        self._target = settings.decoder if settings.disaggregated else settings.engine
        self.key: RouteKey = (settings.namespace, self._target)
        self._picker = EndpointPicker(settings.strategy)
        self._prefill = (
            PrefillStage(settings, self._submit_by_strategy, TIMEOUT_S, EndpointPicker("least_loaded").pick)
            if settings.disaggregated
            else None
        )
        self._endpoints: tuple[tuple[Replica, ...], tuple[Replica, ...]] | None = None
        self.pages["ready"] = self._ready

    def set_endpoints(self, engines: tuple[Replica, ...], decoders: tuple[Replica, ...]) -> bool:
        """Replace the endpoints; return whether they have changed."""
        if (engines, decoders) == self._endpoints:
            return False
        self._endpoints = (engines, decoders)
        if self._picker.prefixes is not None:
            self._picker.prefixes.retain(replica.id for replica in engines)
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
        elif self._picker.prefixes is not None and isinstance(request, ProxiedRequest) and not front:
            await_prompt(request, self._submit_by_strategy)
        else:
            self._submit_by_strategy(request, front)

    def _submit_by_strategy(self, request: PendingRequest, front: bool = False) -> None:
        backends = self._healthy_backends()
        if not backends:
            self.dispatch(request, front)
            return
        loads = {name: backend.counts.load for name, backend in backends.items()}
        chosen = backends[self._picker.pick(loads, request.prompt)]
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
