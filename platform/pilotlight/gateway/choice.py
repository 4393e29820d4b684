"""Which revision of a route gets a request: by tag or name when it asks for one, else by weight."""

from pilotlight.gateway.backend import LiveBackend
from pilotlight.gateway.table import Route


class Turns:
    """Smooth weighted turns: over any 100 requests everybody gets its share, and never in bursts.

    Each turn everybody's credit grows by its weight; the richest is chosen and pays what all have gained.
    """

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = {name: weight for name, weight in weights.items() if weight > 0}
        self._total = sum(self.weights.values())
        self._credit = dict.fromkeys(self.weights, 0)

    def next(self) -> str | None:
        credit = self._credit
        for name, weight in self.weights.items():
            credit[name] += weight
        chosen = max(credit, key=credit.__getitem__, default=None)
        if chosen is not None:
            credit[chosen] -= self._total
        return chosen


class LiveRoute:
    """A route of the table in force. `before` is the same route in the table before it: its turns go on."""

    def __init__(self, route: Route, backends: dict[str, LiveBackend], before: "LiveRoute | None") -> None:
        self.route = route
        self.backends = backends
        turns = Turns({backend.revision: backend.weight for backend in route.backends})
        self._turns: Turns = before._turns if before is not None and before._turns.weights == turns.weights else turns
        self._only = backends[next(iter(turns.weights))] if len(turns.weights) == 1 else None
        self._named = {tag: backends[backend.revision] for backend in route.backends for tag in backend.tags}
        self._named.update(backends)

    def choose(self, tag: str) -> LiveBackend | None:
        """None: no revision has that tag or name, or none has a share."""
        if tag:
            return self._named.get(tag)
        if self._only is not None:
            return self._only
        chosen = self._turns.next()
        return self.backends[chosen] if chosen is not None else None
