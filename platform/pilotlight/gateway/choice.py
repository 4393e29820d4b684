"""Choice of a route's revision for a request: by tag or name if it has one, else by weight."""

from pilotlight.gateway.backend import LiveBackend
from pilotlight.gateway.table import Route


class SmoothWeightedRoundRobin:
    """Nginx' smooth weighted round robin: exact shares over any 100 requests, without bursts.

    Each turn every credit grows by its weight; the highest is chosen and reduced by the total weight.
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
    """A route of the table in force. `previous`: the same route before, whose credits are kept if weights are equal."""

    def __init__(self, route: Route, backends: dict[str, LiveBackend], previous: "LiveRoute | None") -> None:
        self.route = route
        self.backends = backends
        scheduler = SmoothWeightedRoundRobin({backend.revision: backend.weight for backend in route.backends})
        if previous is not None and previous._scheduler.weights == scheduler.weights:
            scheduler = previous._scheduler
        self._scheduler: SmoothWeightedRoundRobin = scheduler
        self._single = backends[next(iter(scheduler.weights))] if len(scheduler.weights) == 1 else None
        self._by_tag = {tag: backends[backend.revision] for backend in route.backends for tag in backend.tags}
        self._by_tag.update(backends)  # a revision's name beats a tag

    def choose(self, tag: str) -> LiveBackend | None:
        """Return the backend; None: no revision has that tag or name, or none has a weight."""
        if tag:
            return self._by_tag.get(tag)
        if self._single is not None:
            return self._single
        chosen = self._scheduler.next()
        return self.backends[chosen] if chosen is not None else None
