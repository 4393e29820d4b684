"""Rate limit per client: token buckets in bounded memory. Pure: the time is an argument."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from pilotlight.gateway.table import Rate

CLIENTS: Final = 50_000


class RateLimiter:
    """Keeps the most recent clients; an evicted one starts with a full bucket."""

    def __init__(self, clients: int = CLIENTS) -> None:
        self._clients = clients
        self._filled: OrderedDict[Hashable, tuple[float, float]] = (
            OrderedDict()
        )  # client → requests left, at which time

    def acquire(self, client: Hashable, rate: Rate, now: float) -> float:
        """Take a token; return 0 if there was one, else the seconds until there is. `now` is monotonic."""
        capacity, per_second = float(rate.burst or rate.requests), rate.requests / rate.seconds
        left, at = self._filled.pop(client, (capacity, now))
        left = min(capacity, left + (now - at) * per_second)
        passes = left >= 1.0 - 1e-9
        self._filled[client] = (left - 1.0 if passes else left, now)
        if len(self._filled) > self._clients:
            self._filled.popitem(last=False)
        return 0.0 if passes else (1.0 - left) / per_second

    def refund(self, client: Hashable) -> None:
        """Return a token that was taken; the next `acquire` caps the bucket."""
        if client in self._filled:
            left, at = self._filled[client]
            self._filled[client] = (left + 1.0, at)
