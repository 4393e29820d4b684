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
    """A token bucket per client: a period's worth may come at once, then it refills evenly. The clock comes in."""

    def __init__(self, amount: int, period_s: float = 60.0) -> None:
        self._amount = amount
        self._period_s = period_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, client: str, now: float) -> float:
        """0 when the request may pass, else the seconds until it would."""
        tokens, then = self._buckets.get(client, (float(self._amount), now))
        tokens = min(self._amount, tokens + (now - then) * self._amount / self._period_s)
        passes = tokens >= 1
        self._buckets[client] = (tokens - 1 if passes else tokens, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - tokens) * self._period_s / self._amount


class Bounds:
    """What one dialect, or all that have no limits of their own, is held to."""

    def __init__(self, limits: Limits, open_access: bool, setting: str, limiter: RateLimiter | None = None) -> None:
        self.limits = limits
        self.setting = setting  # the one that a request too large is told of
        rate = limits.requests_per_minute
        self.limiter = (limiter or RateLimiter(rate)) if rate else None
        # With open access and no rate limit there is nothing to ask of the caller of an inference.
        self.nothing_to_ask = open_access and self.limiter is None


class Admission:
    """Bytes are taken when a body's length is known and given back when its reply is written.

    A dialect may have limits of its own (`hold`); one count per client serves both where both have one.
    """

    def __init__(self, access: Access, limits: Limits, max_bytes_in_flight: int) -> None:
        self._access = access
        self._budget = max_bytes_in_flight
        self.bytes_in_flight = 0
        self._all = Bounds(limits, access.open, "--http-max-input-size")
        self._own: dict[str, Bounds] = {}

    def hold(self, dialect: str, limits: Limits) -> None:
        """The dialect is held to these limits and not to those of all. Once: callers that were counted stay counted."""
        if dialect not in self._own:
            self._own[dialect] = Bounds(limits, self._access.open, "--max-request-size-mb", self._all.limiter)

    def max_bytes(self, dialect: str = "") -> int:
        return self._own.get(dialect, self._all).limits.max_bytes

    def check_size(self, length: int, dialect: str = "") -> None:
        """Called before the body is read: a body that is too large is refused by its announcement."""
        bounds = self._own.get(dialect, self._all)
        if length > (most := bounds.limits.max_bytes):
            raise RequestTooLarge(f"the request has {length} bytes, at most {most} are taken ({bounds.setting})")

    def check_room(self, length: int) -> None:
        if self.bytes_in_flight + length > self._budget:
            raise QueueFull(
                f"requests in flight hold {self.bytes_in_flight} bytes of {self._budget} (--max-bytes-in-flight)"
            )

    def reserve(self, length: int) -> int | None:
        """As `take`, for whoever leaves it to another to say why not: None, else the bytes to give back."""
        if self.bytes_in_flight + length > self._budget:
            return None
        self.bytes_in_flight += length
        return length

    def take(self, length: int) -> None:
        self.check_room(length)
        self.bytes_in_flight += length

    def give_back(self, length: int) -> None:
        self.bytes_in_flight -= length

    def asks(self, action: Action, dialect: str = "") -> bool:
        """Whether `admit` may refuse anybody."""
        bounds = self._own.get(dialect, self._all)
        return action is not Action.HEALTH and (action is Action.ADMIN or not bounds.nothing_to_ask)

    def admit(self, headers: Mapping[str, str], peer: str, action: Action, dialect: str = "") -> None:
        """Raises Unauthenticated, Forbidden or RateLimited. Asked once per request, before its body is read."""
        bounds = self._own.get(dialect, self._all)
        if action is Action.HEALTH or (bounds.nothing_to_ask and action is not Action.ADMIN):
            return
        identity = self._access.identify(headers, peer)
        authorize(identity, action)
        if bounds.limiter is not None and identity.client and action is Action.INFER:
            wait = bounds.limiter.allow(identity.client, monotonic())
            if wait:
                rate = bounds.limits.requests_per_minute
                raise RateLimited(f"more than {rate} requests a minute (safeguards.rate_limit)", int(wait) + 1)
