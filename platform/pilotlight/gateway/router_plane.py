"""The data plane as a router uses it: one route, an endpoint per backend, and a strategy that chooses among them."""

import asyncio
from collections.abc import Mapping
from typing import Final

from pilotlight.gateway.admission import Gatekeeper
from pilotlight.gateway.backend import Asker, LiveBackend
from pilotlight.gateway.choice import LiveRoute
from pilotlight.gateway.exchange import Exchange
from pilotlight.gateway.messages import Unreachable, Wake
from pilotlight.gateway.plane import Plane
from pilotlight.gateway.router_settings import RouterSettings
from pilotlight.gateway.routing import Aim, Key, OwnAim
from pilotlight.gateway.routing import Router as Aiming
from pilotlight.gateway.strategy import LOOKED_AT, Choice
from pilotlight.gateway.table import Backend, Replica, Route, Table

PAGES: Final = {"/ready": "ready", "/healthz": "healthz", "/metrics": "metrics"}
TIMEOUT_S: Final = 3600.0  # engines answer when they have thought; who asks the router has a limit of its own
BODY_WAIT_S: Final = 0.05  # for a body that comes after its head
BODY_LOOK_S: Final = 0.002
NOBODY: Final = "no-endpoint"


class RouterPlane(Plane):
    """Everything but the router's own pages goes to the engines."""

    def __init__(self, settings: RouterSettings) -> None:
        super().__init__(_ignore, _ignore, Gatekeeper())
        self._target = settings.decoder if settings.disaggregated else settings.engine
        self.key: Key = (settings.namespace, self._target)
        self._disaggregated = settings.disaggregated
        self._choice, self._prefill_choice = Choice(settings.strategy), Choice("least_loaded")
        self._prefills: tuple[Replica, ...] = ()
        self._prefilling: dict[str, list[Exchange]] = {}
        self._endpoints: tuple[Replica, ...] | None = None
        self.own["ready"] = self._ready

    def serve(self, engines: tuple[Replica, ...], decoders: tuple[Replica, ...]) -> bool:
        """The endpoints from here on; whether they are others than before."""
        endpoints, prefills = (decoders, engines) if self._disaggregated else (engines, ())
        if (endpoints, prefills) == (self._endpoints, self._prefills):
            return False
        self._endpoints, self._prefills = endpoints, prefills
        self._prefilling = {each.id: self._prefilling.get(each.id, []) for each in prefills}
        able = endpoints if prefills or not self._disaggregated else ()
        backends = tuple(Backend(replica.id, self._target, 0, (replica,)) for replica in able)
        if not backends:
            why = f"no endpoint of {self._target} is ready"
            backends = (Backend(NOBODY, self._target, 100, unavailable=why),)
        self.publish(Table(self.generation + 1, (Route(*self.key, backends, timeout_s=TIMEOUT_S),)))
        return True

    def publish(self, table: Table) -> None:
        super().publish(table)
        self.landscape.router = _OneRoute(table, self.key)

    def place(self, asker: Asker, route: LiveRoute, tag: str, first: bool = False) -> None:
        """By the strategy; one that reads the prompt waits a moment for it."""
        if not self._able():
            super().place(asker, route, tag, first)
        elif self._choice.reads_body and isinstance(asker, Exchange) and not first:
            self._await_body(asker, self.clock() + BODY_WAIT_S)
        else:
            self._route(asker, first)

    def _await_body(self, exchange: Exchange, until: float) -> None:
        if exchange.client.exchange is not exchange:
            return  # its client has left, or it was no request after all
        if exchange.whole or len(exchange.beginning(LOOKED_AT)) >= LOOKED_AT or self.clock() >= until:
            self._route(exchange, False)
        else:
            asyncio.get_running_loop().call_later(BODY_LOOK_S, self._await_body, exchange, until)

    def _route(self, asker: Asker, first: bool) -> None:
        live = self._able()
        if not live:
            self.dispatch(asker, first)
            return
        beginning = asker.beginning(LOOKED_AT) if isinstance(asker, Exchange) and self._choice.reads_body else b""
        chosen = live[self._choice.of({name: backend.counts.load for name, backend in live.items()}, beginning)]
        if self._disaggregated and isinstance(asker, Exchange):
            self._name_prefill(asker)
        if not self._busy:
            self.busy()
        if first:
            chosen.enter_first(asker, self.clock())
        else:
            chosen.enter(asker, self.clock())

    def _able(self) -> Mapping[str, LiveBackend]:
        """Those that were reached lately; all of them when none was."""
        route = self.landscape.routes.get(self.key)
        backends = {name: each for name, each in route.backends.items() if each.replicas} if route is not None else {}
        now = self.clock()
        reached = {name: each for name, each in backends.items() if each.replicas[0].shunned_until <= now}
        return reached or backends

    def _name_prefill(self, exchange: Exchange) -> None:
        """The prefill engine with the fewest requests that are still on their way."""
        for name, exchanges in self._prefilling.items():
            self._prefilling[name] = [each for each in exchanges if not each.over]
        loads = {name: len(exchanges) for name, exchanges in self._prefilling.items()}
        chosen = self._prefill_choice.of(loads)
        self._prefilling[chosen].append(exchange)
        replica = next(each for each in self._prefills if each.id == chosen)
        place = f"{replica.host}:{replica.port}"
        exchange.tell(
            {"X-Prefill-Host": replica.host, "X-Prefill-Port": str(replica.port), "X-Prefiller-Host-Port": place}
        )

    def _ready(self) -> tuple[int, str, bytes]:
        ready = bool(self._able())
        return (200, "text/plain", b"ready\n") if ready else (503, "text/plain", b"no endpoint is ready\n")


class _OneRoute(Aiming):
    """Every path is the engines', whatever it begins with, but for the router's own pages."""

    def __init__(self, table: Table, key: Key) -> None:
        super().__init__(table)
        self._key = key

    def aim(self, target: str, headers: Mapping[str, str], own_port: Key | None) -> Aim | OwnAim | None:
        page = PAGES.get(target.partition("?")[0])
        return OwnAim(page) if page else Aim(self._key, "", target)


def _ignore(word: Wake | Unreachable) -> None:
    """Nobody is told: endpoints are looked at all the time."""
