"""The one gate that every request passes, whichever front it came through: who, how large, how many, how often."""

from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic
from typing import Final

from pilotlight_predictor.access import Access, Action, authorize
from pilotlight_predictor.errors import QueueFull, RateLimited, RequestTooLarge
from pilotlight_predictor.settings import Limits

MAX_CLIENTS: Final = 10_000  # buckets remembered; the one longest unused is forgotten first


class RateLimiter:
    """A token bucket per client: a minute's worth may come at once, then it refills evenly. The clock comes in."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, client: str, now: float) -> float:
        """0 when the request may pass, else the seconds until it would."""
        tokens, then = self._buckets.get(client, (float(self._per_minute), now))
        tokens = min(self._per_minute, tokens + (now - then) * self._per_minute / 60)
        passes = tokens >= 1
        self._buckets[client] = (tokens - 1 if passes else tokens, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - tokens) * 60 / self._per_minute


class Admission:
    """Bytes are taken when a body's length is known and given back when its reply is written."""

    def __init__(self, access: Access, limits: Limits, max_bytes_in_flight: int) -> None:
        self._access = access
        self.limits = limits
        self._budget = max_bytes_in_flight
        self.bytes_in_flight = 0
        rate = limits.requests_per_minute
        self._limiter = RateLimiter(rate) if rate else None
        # With open access and no rate limit there is nothing to ask of the caller of an inference.
        self._nothing_to_ask = access.open and self._limiter is None

    def check_size(self, length: int) -> None:
        """Called before the body is read: a body that is too large is refused by its announcement."""
        if length > self.limits.max_bytes:
            raise RequestTooLarge(
                f"the request has {length} bytes, at most {self.limits.max_bytes} are taken (--http-max-input-size)"
            )

    def has_room(self, length: int) -> bool:
        return self.bytes_in_flight + length <= self._budget

    def take(self, length: int) -> None:
        if not self.has_room(length):
            raise QueueFull(
                f"requests in flight hold {self.bytes_in_flight} bytes of {self._budget} (--max-bytes-in-flight)"
            )
        self.bytes_in_flight += length

    def give_back(self, length: int) -> None:
        self.bytes_in_flight -= length

    def admit(self, headers: Mapping[str, str], peer: str, action: Action) -> None:
        """Raises Unauthenticated, Forbidden or RateLimited. Asked once per request, before its body is read."""
        if action is Action.HEALTH or (self._nothing_to_ask and action is not Action.ADMIN):
            return
        identity = self._access.identify(headers, peer)
        authorize(identity, action)
        if self._limiter is not None and identity.client and action is Action.INFER:
            wait = self._limiter.allow(identity.client, monotonic())
            if wait:
                rate = self.limits.requests_per_minute
                raise RateLimited(f"more than {rate} requests a minute (safeguards.rate_limit)", int(wait) + 1)
