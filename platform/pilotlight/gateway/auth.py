"""Admission of requests to a route: authentication by bearer token or JWT, then rate limit and quota of the client.

A route with `Access` denies by default, the same for HTTP, WebSocket, gRPC, tags, dedicated ports and Host names.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import structs

from pilotlight.contract import ENV_ACCESS_FILE
from pilotlight.errors import UsageError
from pilotlight.gateway.control_link import Spent
from pilotlight.gateway.proxy.model_routes import openai_error
from pilotlight.gateway.proxy.responses import ErrorResponse
from pilotlight.gateway.routing_table import Route
from pilotlight.gateway.token_quotas import TokenQuotas
from pilotlight.wire.access_file import AccessFile
from pilotlight.wire.client_address import Networks, client_address
from pilotlight.wire.service_access import Access, Refusal, authenticate, check_rate
from pilotlight.wire.token_bucket import TokenBuckets

QUOTA_REASON: Final = "tokens"
REJECTION_REASONS: Final = {401: "unauthorized", 403: "forbidden", 429: "rate", 503: "unverifiable"}


class AccessAdmission:
    """`on_rejected` is called with the route and a short reason; X-Forwarded-For is believed of `trusted` proxies."""

    def __init__(
        self,
        on_rejected: Callable[[Route, str], None] = lambda route, reason: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        trusted: Networks = (),
    ) -> None:
        self._on_rejected, self._clock, self._wall, self._trusted = on_rejected, clock, wall, trusted
        self._buckets, self.quotas = TokenBuckets(), TokenQuotas()

    def admit(
        self, route: Route, headers: Mapping[str, str], peer: str, client: str | Refusal | None = None
    ) -> ErrorResponse | None:
        route = self._with_rules(route)
        if route.access is None and route.rate is None:
            return None
        realm = f"{route.namespace}/{route.name}"
        if client is None:
            client = authenticate(route.access, realm, headers, self._wall())
        refusal: Refusal | None = None
        if isinstance(client, Refusal):
            refusal = client
        elif route.rate is not None:
            key = (route.namespace, route.name, client or f"address:{client_address(headers, peer, self._trusted)}")
            refusal = check_rate(self._buckets, route.rate, key, realm, self._clock())
        if refusal is not None:
            self._on_rejected(route, REJECTION_REASONS[refusal.status])
            return ErrorResponse(*refusal)
        assert isinstance(client, str)
        if route.quota is not None:
            key = (route.namespace, route.name, client)
            refusal = self.quotas.check(key, route.quota, realm, self._clock(), self._wall())
        if refusal is None:
            return None
        self._on_rejected(route, QUOTA_REASON)
        return openai_error(ErrorResponse(*refusal))

    def spend(self, route: Route, caller: str, tokens: int, *, own: bool = True) -> None:
        """Take the tokens of a response from the quota of its caller; not `own`: another gateway passed it."""
        if route.quota is not None:
            key = (route.namespace, route.name, caller)
            self.quotas.spend(key, route.quota, tokens, self._clock(), self._wall(), own=own)

    def restore(self, spent: Spent) -> None:
        """Set what callers have spent today, which the control process has stored."""
        for *key, tokens in spent.callers:
            self.quotas.restore(tuple(key), spent.day, tokens, self._clock())

    def allows(self, headers: Mapping[str, str]) -> Callable[[Route], bool]:
        """Return whether the client may call a route; rules that routes share are checked once (a JWT takes 0.4 ms)."""
        known: dict[Access | None, bool] = {}

        def allowed(route: Route) -> bool:
            access = self._with_rules(route).access
            if (answer := known.get(access)) is None:
                answer = known[access] = isinstance(self.authenticate(route, headers), str)
            return answer

        return allowed

    def authenticate(self, route: Route, headers: Mapping[str, str]) -> str | Refusal:
        realm = f"{route.namespace}/{route.name}"
        return authenticate(self._with_rules(route).access, realm, headers, self._wall())

    def _with_rules(self, route: Route) -> Route:
        """Return the route with the rules in force."""
        return route


class FileAdmission(AccessAdmission):
    """Admission by the rules of a file in place of the route's, for a router. Raises UsageError for an invalid file."""

    def __init__(self, path: str, trusted: Networks, on_error: Callable[[str], None]) -> None:
        super().__init__(trusted=trusted)
        try:
            self._file = AccessFile(path, on_error, self._clock())
        except (OSError, ValueError) as error:
            raise UsageError(f"{ENV_ACCESS_FILE} = {path}, must be a file of access rules: {error}") from None

    def _with_rules(self, route: Route) -> Route:
        rules = self._file.rules(self._clock())
        return structs.replace(route, access=rules.access, rate=rules.rate)
