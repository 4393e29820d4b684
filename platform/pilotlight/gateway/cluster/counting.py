"""Load of this pod: from the data plane to the demand reported to KEDA, to the peers, and to /metrics.

Held requests are reported at once, everything else every second while there are requests; no timer runs otherwise.
"""

import asyncio
from collections.abc import Callable

from pilotlight.gateway.cluster.demand import OWN, Demand, Loads, WorkloadKey
from pilotlight.gateway.messages import Report, Wake
from pilotlight.gateway.metrics import Metrics
from pilotlight.gateway.plane import DataPlane
from pilotlight.gateway.reporting import Reporter


class LoadReporter:
    """`broadcast` sends loads to the peers; `notify` wakes streams that wait for a change of the demand."""

    def __init__(
        self,
        plane: DataPlane,
        demand: Demand,
        broadcast: Callable[[dict[WorkloadKey, int]], None],
        notify: Callable[[], None],
    ) -> None:
        self.metrics = Metrics()
        self._plane, self._demand, self._broadcast, self._notify = plane, demand, broadcast, notify
        self._active: frozenset[WorkloadKey] = frozenset()  # workloads with requests within the last second
        self._last_sent: dict[WorkloadKey, int] = {}
        self._reporter = Reporter(plane, self._on_report, lambda report: None)
        self._start_timer, plane.on_busy = plane.on_busy, self._on_busy

    def on_wake(self, wake: Wake) -> None:
        """Report at once: a held request has no replica."""
        self._publish()

    def on_peer_loads(self, peer: str, loads: Loads) -> None:
        self._demand.record(peer, loads, self._plane.clock())
        self._notify()

    def refresh(self) -> dict[WorkloadKey, int]:
        """Record and return the current loads; workloads of the last report stay listed, with 0 if need be."""
        loads = dict.fromkeys(self._active, 0) | self._plane.loads()
        self._demand.record(OWN, loads, self._plane.clock())
        return loads

    def page(self) -> bytes:
        """Return /metrics as of the last report: an extra report per scrape would shorten the activity of workloads."""
        return self.metrics.page()[2]

    def close(self) -> None:
        self._reporter.close()

    def _on_busy(self) -> None:
        """Report the first request after an idle time, once it is counted at the end of this loop iteration."""
        self._start_timer()
        asyncio.get_running_loop().call_soon(self._publish)

    def _on_report(self, report: Report) -> None:
        self.metrics.add(report)
        self._active = frozenset((each.namespace, each.workload) for each in report.backends)
        self._publish()

    def _publish(self) -> None:
        """Send the loads to peers and streams; an empty report is sent once."""
        loads = self.refresh()
        if loads or self._last_sent:
            self._last_sent = loads
            self._broadcast(loads)
            self._notify()
