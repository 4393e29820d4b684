"""Admission of requests: authentication, then the rate limit of the client."""

import math
import time
from collections.abc import Callable, Mapping

from pilotlight.gateway import access
from pilotlight.gateway.gate import ErrorResponse
from pilotlight.gateway.rate import RateLimiter
from pilotlight.gateway.table import Route

REASONS = {401: "unauthorized", 403: "forbidden", 429: "rate", 503: "unverifiable"}


class AccessAdmission:
    """`on_rejected` is called with the route and a short reason."""

    def __init__(
        self,
        on_rejected: Callable[[Route, str], None] = lambda route, reason: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._on_rejected, self._clock, self._wall = on_rejected, clock, wall
        self._limiter = RateLimiter()

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> ErrorResponse | None:
        if route.access is None and route.rate is None:
            return None
        result = access.authenticate(route, headers, self._wall())
        error = result if isinstance(result, ErrorResponse) else self._limit(route, result or f"address:{peer}")
        if error is not None:
            self._on_rejected(route, REASONS[error.status])
        return error

    def _limit(self, route: Route, client: str) -> ErrorResponse | None:
        if route.rate is None:
            return None
        wait = self._limiter.acquire((route.namespace, route.name, client), route.rate, self._clock())
        if not wait:
            return None
        allowed = f"{route.rate.requests} requests in {route.rate.seconds:g} s"
        message = f"{route.namespace}/{route.name} allows each client {allowed}; try again in {math.ceil(wait)} s"
        return ErrorResponse(429, message, {"Retry-After": str(math.ceil(wait))})
