"""The gate of the data plane: access first, then the rate of the client that was recognised. Counts whom it refuses."""

import math
import time
from collections.abc import Callable, Mapping

from pilotlight.gateway import access
from pilotlight.gateway.gate import Refusal
from pilotlight.gateway.rate import Buckets
from pilotlight.gateway.table import Route

REASONS = {401: "unauthorized", 403: "forbidden", 429: "rate", 503: "unverifiable"}


class Gatekeeper:
    """`on_refused` hears the route and a short reason."""

    def __init__(
        self,
        on_refused: Callable[[Route, str], None] = lambda route, reason: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._on_refused, self._clock, self._wall = on_refused, clock, wall
        self._buckets = Buckets()

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> Refusal | None:
        if route.access is None and route.rate is None:
            return None
        verdict = access.judge(route, headers, self._wall())
        refusal = verdict if isinstance(verdict, Refusal) else self._limit(route, verdict or f"address:{peer}")
        if refusal is not None:
            self._on_refused(route, REASONS[refusal.status])
        return refusal

    def _limit(self, route: Route, client: str) -> Refusal | None:
        if route.rate is None:
            return None
        wait = self._buckets.take((route.namespace, route.name, client), route.rate, self._clock())
        if not wait:
            return None
        allowed = f"{route.rate.requests} requests in {route.rate.seconds:g} s"
        message = f"{route.namespace}/{route.name} allows each client {allowed}; try again in {math.ceil(wait)} s"
        return Refusal(429, message, {"Retry-After": str(math.ceil(wait))})
