"""How often one client may ask: a token bucket for each, in bounded memory. Pure: the time is an argument."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from pilotlight.gateway.table import Rate

CLIENTS: Final = 50_000


class Buckets:
    """Remembers the clients seen last; one that was forgotten starts with a full bucket."""

    def __init__(self, clients: int = CLIENTS) -> None:
        self._clients = clients
        self._filled: OrderedDict[Hashable, tuple[float, float]] = (
            OrderedDict()
        )  # client → requests left, at which time

    def take(self, client: Hashable, rate: Rate, now: float) -> float:
        """0 when the request may pass, else the seconds until one may. `now` is monotonic."""
        most, per_second = float(rate.burst or rate.requests), rate.requests / rate.seconds
        left, at = self._filled.pop(client, (most, now))
        left = min(most, left + (now - at) * per_second)
        passes = left >= 1.0 - 1e-9
        self._filled[client] = (left - 1.0 if passes else left, now)
        if len(self._filled) > self._clients:
            self._filled.popitem(last=False)
        return 0.0 if passes else (1.0 - left) / per_second

    def give_back(self, client: Hashable) -> None:
        """One that was taken and shall not count; more than a full bucket is never left at the next."""
        if client in self._filled:
            left, at = self._filled[client]
            self._filled[client] = (left + 1.0, at)
