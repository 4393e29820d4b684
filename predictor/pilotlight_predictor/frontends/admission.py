"""Admission of requests of every transport: authorization, size, bytes in flight, rate limits."""

from collections.abc import Mapping
from time import monotonic
from typing import Final

from pilotlight.wire.client_address import foreign_site
from pilotlight.wire.token_bucket import TokenBuckets
from pilotlight_predictor.config import Limits
from pilotlight_predictor.core.byte_budget import ByteBudget
from pilotlight_predictor.errors import Forbidden, PredictorError, RateLimited, RequestTooLarge
from pilotlight_predictor.frontends.auth import Access, Action, authorize
from pilotlight_predictor.frontends.restricted_apis import Restriction
from pilotlight_predictor.frontends.tasks_and_timeouts import SCARCE_S, SLOW_S

MAX_CLIENTS: Final = 10_000  # stored token buckets; the least recently used is evicted first


class AdmissionLimits:
    """Limits of one protocol, or of all that have none of their own."""

    def __init__(self, limits: Limits, open_access: bool, setting: str, buckets: TokenBuckets) -> None:
        self.limits = limits
        self.setting = setting  # named in the error for a request that is too large
        # With a rate limit: a burst of one minute's requests.
        self.buckets = buckets if limits.requests_per_minute else None
        # With open access and no rate limit every inference is admitted.
        self.unrestricted = open_access and self.buckets is None


class Admission(ByteBudget):
    """Byte budget, authorization and rate limits of requests.

    Bytes are reserved as they arrive, and released when the client has taken its response. A protocol may have limits
    of its own (`set_limits`); its rate limit shares the clients' buckets with the general one if both exist.
    """

    def __init__(
        self, access: Access, limits: Limits, max_bytes_in_flight: int, buckets: TokenBuckets | None = None
    ) -> None:
        super().__init__(max_bytes_in_flight)
        self._access, self.settings = access, access.settings
        self._buckets = buckets or TokenBuckets(MAX_CLIENTS)  # of all workers, or of this process
        self._all = AdmissionLimits(limits, access.open, "--http-max-input-size", self._buckets)
        self._own: dict[str, AdmissionLimits] = {}

    def set_limits(self, protocol: str, limits: Limits) -> None:
        """Set the protocol's own limits, once: a second call would reset the counts of clients."""
        if protocol not in self._own:
            self._own[protocol] = AdmissionLimits(limits, self._access.open, "--max-request-size-mb", self._buckets)

    def max_bytes(self, protocol: str = "") -> int:
        return self._own.get(protocol, self._all).limits.max_bytes

    def check_size(self, length: int, protocol: str = "") -> None:
        """Raise RequestTooLarge by the announced length, before the body is read."""
        bounds = self._own.get(protocol, self._all)
        if length > (max_bytes := bounds.limits.max_bytes):
            raise RequestTooLarge(f"the request has {length} bytes, the limit is {max_bytes} ({bounds.setting})")

    @property
    def slow_s(self) -> float:
        """Return the seconds in which a part of a body must come: fewer while bodies hold memory that others need."""
        return SCARCE_S if self.scarce else SLOW_S

    def checks_every_request(self, action: Action, protocol: str = "") -> bool:
        """Whether `admit` may refuse a request."""
        bounds = self._own.get(protocol, self._all)
        return action is not Action.HEALTH and (action is Action.ADMIN or not bounds.unrestricted)

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Raise Forbidden for the web page of another site, if the server is on loopback."""
        if self._access.own_hosts is not None and (refusal := foreign_site(headers, self._access.own_hosts)):
            raise Forbidden(refusal)

    def may_read(self, headers: Mapping[str, str], peer: str) -> bool:
        """Whether the sender of a request that needs no right, such as a probe, may see why a model failed."""
        if self._access.open:
            return True
        try:
            authorize(self._access.identify(headers, peer, Action.READ), Action.READ)
        except PredictorError:
            return False
        return True

    def admit(
        self,
        headers: Mapping[str, str],
        peer: str,
        action: Action,
        protocol: str = "",
        restriction: Restriction | None = None,
    ) -> None:
        """Raise Unauthenticated, Forbidden or RateLimited. Once per request, before its body is read."""
        if restriction is not None:
            restriction.check(headers)
        bounds = self._own.get(protocol, self._all)
        if action is Action.HEALTH or (bounds.unrestricted and action is not Action.ADMIN):
            return
        identity = self._access.identify(headers, peer, action)
        if restriction is not None and action is Action.ADMIN:
            action = Action.READ  # whoever has the key of the group may change what it is about
        authorize(identity, action)
        if self._access.rules is not None and action is not Action.METRICS:
            self._access.rules.check_rate(identity.client)
        rate = bounds.limits.requests_per_minute
        if not rate or bounds.buckets is None or not identity.client or action is not Action.INFER:
            return
        if wait := bounds.buckets.acquire(identity.client, rate, rate / 60.0, monotonic()):
            raise RateLimited(f"more than {rate} requests a minute (safeguards.rate_limit)", int(wait) + 1)
