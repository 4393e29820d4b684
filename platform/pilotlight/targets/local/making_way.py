"""Services that share GPUs: who is asked and waits for one gets that of a service which nobody asks and which parks.

The supervisor knows which devices are held and who would have to go (supervisor/giving_way.py); here is known who is
asked, and the autoscaler is told to let go.
"""

from collections.abc import Callable, Mapping

from pilotlight.targets.local.chronicle import Chronicle
from pilotlight.targets.local.publishing import Publisher
from pilotlight.targets.local.scaler import Scaler
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.target import Key


class MakingWay:
    """`settle` is told of each service that gives its GPU up."""

    def __init__(
        self,
        runs: Mapping[Key, ServiceRun],
        supervisor: Supervisor,
        publisher: Publisher,
        scaler: Scaler,
        chronicle: Chronicle,
        clock: Callable[[], float],
        settle: Callable[[ServiceRun], None],
    ) -> None:
        self._runs, self._supervisor, self._publisher, self._scaler = runs, supervisor, publisher, scaler
        self._chronicle, self._clock, self._settle = chronicle, clock, settle

    def look(self) -> None:
        """Who waits for a GPU, and is asked, gets that of a service which nobody asks and which parks."""
        for waiting in [found.id for found in self._supervisor.replicas() if found.waits]:
            replica = next((each for each in self._supervisor.replicas() if each.id == waiting and each.waits), None)
            run = self._runs.get((replica.namespace, replica.service)) if replica is not None else None
            if replica is None or run is None or replica.revision not in run.revisions:
                continue  # another has made way for it, or it has gone
            asked = run.unit_of(run.revisions[replica.revision], self._clock()).traffic.waiting
            idle = {found.id: found for found in self._supervisor.replicas() if asked and self._is_idle(found)}
            yielding = self._supervisor.giving_way(replica.id, idle, self._publisher.retiring)
            for name in yielding:
                self._give_way(idle[name], f"{replica.namespace}/{replica.service}")
            if not yielding and self._supervisor.move(replica.id, self._publisher.retiring):
                message = "ended while parked: others have its GPU, and another one is free"
                self._chronicle.tell(run.key, f"Replica/{replica.id}", "Moved", message)

    def _is_idle(self, replica: Replica) -> bool:
        run = self._runs.get((replica.namespace, replica.service))
        if run is None or replica.revision not in run.revisions or replica.id in self._publisher.retiring:
            return False
        revision = run.revisions[replica.revision]
        unit = run.unit_of(revision, self._clock())
        parks = revision.spec.container.parks and replica.state == "ready"
        return parks and unit.may_yield(run.override_of(unit.name))

    def _give_way(self, replica: Replica, service: str) -> None:
        run = self._runs[replica.namespace, replica.service]
        self._scaler.give_way(run, run.unit_of(run.revisions[replica.revision], self._clock()), service)
        self._settle(run)
