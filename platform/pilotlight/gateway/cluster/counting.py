"""This pod's own counts: from the data plane to the demand that KEDA hears of, to the peers, and to /metrics.

A request that waits is told at once, everything else once a second while anything happens; at rest nothing ticks.
"""

import asyncio
from collections.abc import Callable

from pilotlight.gateway.cluster.demand import OWN, Demand, Key, Loads
from pilotlight.gateway.messages import Report, Wake
from pilotlight.gateway.metrics import Metrics
from pilotlight.gateway.plane import Plane
from pilotlight.gateway.reporting import Reporter


class Counting:
    """`tell` gets what the peers shall know; `ring` wakes whoever waits for a change of the demand."""

    def __init__(
        self, plane: Plane, demand: Demand, tell: Callable[[dict[Key, int]], None], ring: Callable[[], None]
    ) -> None:
        self.metrics = Metrics()
        self._plane, self._demand, self._tell, self._ring = plane, demand, tell, ring
        self._named: frozenset[Key] = frozenset()  # what the last report was about: asked within a second
        self._told: dict[Key, int] = {}
        self._reporter = Reporter(plane, self._keep, lambda report: None)
        self._begin, plane.on_busy = plane.on_busy, self._busy

    def woken(self, wake: Wake) -> None:
        """A request waits and there is no replica: it is counted already."""
        self._say()

    def heard(self, peer: str, loads: Loads) -> None:
        self._demand.note(peer, loads, self._plane.clock())
        self._ring()

    def refresh(self) -> dict[Key, int]:
        """The present numbers, for whoever asks between two reports; what was named stays named."""
        loads = dict.fromkeys(self._named, 0) | self._plane.loads()
        self._demand.note(OWN, loads, self._plane.clock())
        return loads

    def page(self) -> bytes:
        """As of the last report: one more for each scrape would cut short what was named in between."""
        return self.metrics.page()[2]

    def close(self) -> None:
        self._reporter.close()

    def _busy(self) -> None:
        """The first request after a rest is counted when this turn of the loop is over."""
        self._begin()
        asyncio.get_running_loop().call_soon(self._say)

    def _keep(self, report: Report) -> None:
        self.metrics.add(report)
        self._named = frozenset((each.namespace, each.workload) for each in report.backends)
        self._say()

    def _say(self) -> None:
        """Peers hear once that nothing is left, and then nothing."""
        loads = self.refresh()
        if loads or self._told:
            self._told = loads
            self._tell(loads)
            self._ring()
