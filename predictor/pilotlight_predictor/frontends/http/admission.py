"""Admission of requests of every transport: authorization, size, bytes in flight, rate limits."""

from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic
from typing import Final

from pilotlight_predictor.config import Limits
from pilotlight_predictor.core.errors import QueueFull, RateLimited, RequestTooLarge
from pilotlight_predictor.frontends.http.auth import Access, Action, authorize

MAX_CLIENTS: Final = 10_000  # stored token buckets; the least recently used is evicted first


class RateLimiter:
    """A token bucket per client, with a burst of one period's amount. The clock is an argument."""

    def __init__(self, amount: int, period_s: float = 60.0) -> None:
        self._amount = amount
        self._period_s = period_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, client: str, now: float) -> float:
        """Return 0 if the request is allowed, else the seconds until it would be."""
        tokens, then = self._buckets.get(client, (float(self._amount), now))
        tokens = min(self._amount, tokens + (now - then) * self._amount / self._period_s)
        passes = tokens >= 1
        self._buckets[client] = (tokens - 1 if passes else tokens, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - tokens) * self._period_s / self._amount


class AdmissionLimits:
    """Limits of one protocol, or of all that have none of their own."""

    def __init__(self, limits: Limits, open_access: bool, setting: str, limiter: RateLimiter | None = None) -> None:
        self.limits = limits
        self.setting = setting  # named in the error for a request that is too large
        rate = limits.requests_per_minute
        self.limiter = (limiter or RateLimiter(rate)) if rate else None
        # With open access and no rate limit every inference is admitted.
        self.unrestricted = open_access and self.limiter is None


class Admission:
    """Reserves bytes when a body's length is known, and releases them when its response is written.

    A protocol may have limits of its own (`set_limits`); its rate limit shares the clients' buckets with the general
    one if both exist.
    """

    def __init__(self, access: Access, limits: Limits, max_bytes_in_flight: int) -> None:
        self._access = access
        self._budget = max_bytes_in_flight
        self.bytes_in_flight = 0
        self._all = AdmissionLimits(limits, access.open, "--http-max-input-size")
        self._own: dict[str, AdmissionLimits] = {}

    def set_limits(self, dialect: str, limits: Limits) -> None:
        """Set the protocol's own limits, once: a second call would reset the counts of clients."""
        if dialect not in self._own:
            self._own[dialect] = AdmissionLimits(limits, self._access.open, "--max-request-size-mb", self._all.limiter)

    def max_bytes(self, dialect: str = "") -> int:
        return self._own.get(dialect, self._all).limits.max_bytes

    def check_size(self, length: int, dialect: str = "") -> None:
        """Raise RequestTooLarge by the announced length, before the body is read."""
        bounds = self._own.get(dialect, self._all)
        if length > (most := bounds.limits.max_bytes):
            raise RequestTooLarge(f"the request has {length} bytes, at most {most} are taken ({bounds.setting})")

    def check_capacity(self, length: int) -> None:
        if self.bytes_in_flight + length > self._budget:
            raise QueueFull(
                f"requests in flight hold {self.bytes_in_flight} bytes of {self._budget} (--max-bytes-in-flight)"
            )

    def reserve(self, length: int) -> int | None:
        """As `take`, but return None instead of raising; else the bytes to release."""
        if self.bytes_in_flight + length > self._budget:
            return None
        self.bytes_in_flight += length
        return length

    def take(self, length: int) -> None:
        self.check_capacity(length)
        self.bytes_in_flight += length

    def release(self, length: int) -> None:
        self.bytes_in_flight -= length

    def checks_every_request(self, action: Action, dialect: str = "") -> bool:
        """Whether `admit` may refuse a request."""
        bounds = self._own.get(dialect, self._all)
        return action is not Action.HEALTH and (action is Action.ADMIN or not bounds.unrestricted)

    def admit(self, headers: Mapping[str, str], peer: str, action: Action, dialect: str = "") -> None:
        """Raise Unauthenticated, Forbidden or RateLimited. Once per request, before its body is read."""
        bounds = self._own.get(dialect, self._all)
        if action is Action.HEALTH or (bounds.unrestricted and action is not Action.ADMIN):
            return
        identity = self._access.identify(headers, peer)
        authorize(identity, action)
        if bounds.limiter is not None and identity.client and action is Action.INFER:
            wait = bounds.limiter.allow(identity.client, monotonic())
            if wait:
                rate = bounds.limits.requests_per_minute
                raise RateLimited(f"more than {rate} requests a minute (safeguards.rate_limit)", int(wait) + 1)
