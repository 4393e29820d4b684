"""Rate limits of gateway, control API and predictor: a token bucket per client, in bounded memory.

Standard library only; the clock is an argument.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

MAX_CLIENTS: Final = 50_000
_ROUNDING: Final = 1e-9  # a bucket refilled in fractions may lack this much of a token


class TokenBuckets:
    """Buckets by client. The least recently used one beyond `max_clients` is evicted, and starts full again."""

    def __init__(self, max_clients: int = MAX_CLIENTS) -> None:
        self._max_clients = max_clients
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # tokens left, and when

    def acquire(self, client: Hashable, capacity: float, per_second: float, now: float) -> float:
        """Take a token; return 0 if there was one, else the seconds until there is. `now` is monotonic."""
        left, then = self._buckets.pop(client, (capacity, now))
        left = min(capacity, left + (now - then) * per_second)
        admitted = left >= 1.0 - _ROUNDING
        self._buckets[client] = (left - 1.0 if admitted else left, now)
        if len(self._buckets) > self._max_clients:
            self._buckets.popitem(last=False)
        return 0.0 if admitted else (1.0 - left) / per_second

    def refund(self, client: Hashable) -> None:
        """Return a token that was taken; the next `acquire` caps the bucket."""
        if client in self._buckets:
            left, then = self._buckets[client]
            self._buckets[client] = (left + 1.0, then)
