"""GPU preemption between services: a service with waiting requests takes the GPUs of an idle one that can park.

The supervisor selects the victims (supervisor/giving_way.py); this module adds which services have requests, and scales
the victims' units to zero.
"""

from collections.abc import Callable, Mapping

from pilotlight.targets.local.chronicle import EventRecorder
from pilotlight.targets.local.publishing import Publisher
from pilotlight.targets.local.scaler import Autoscaler
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.target import Key


class GpuPreemption:
    """`reconcile_service` is called for each service that loses its GPUs."""

    def __init__(
        self,
        runs: Mapping[Key, ServiceRun],
        supervisor: Supervisor,
        publisher: Publisher,
        autoscaler: Autoscaler,
        events: EventRecorder,
        clock: Callable[[], float],
        reconcile_service: Callable[[ServiceRun], None],
    ) -> None:
        self._runs, self._supervisor, self._publisher, self._autoscaler = runs, supervisor, publisher, autoscaler
        self._events, self._clock, self._reconcile_service = events, clock, reconcile_service

    def reconcile(self) -> None:
        """Park idle replicas whose GPUs are needed by replicas with waiting requests."""
        for waiting in [each.id for each in self._supervisor.replicas() if each.waits_for_gpu]:
            # Looked up again: an earlier preemption of this loop may have started or removed it.
            replicas = self._supervisor.replicas()
            replica = next((each for each in replicas if each.id == waiting and each.waits_for_gpu), None)
            run = self._runs.get((replica.namespace, replica.service)) if replica is not None else None
            if replica is None or run is None or replica.revision not in run.revisions:
                continue
            waiting_requests = run.unit_of(run.revisions[replica.revision], self._clock()).traffic.waiting
            idle = {each.id: each for each in replicas if waiting_requests and self._is_idle(each)}
            victims = self._supervisor.preemption_victims(replica.id, idle, self._publisher.retiring)
            for name in victims:
                self._preempt(idle[name], f"{replica.namespace}/{replica.service}")
            if not victims and self._supervisor.evict_blocked(replica.id, self._publisher.retiring):
                message = "ended while parked: others have its GPU, and another one is free"
                self._events.record(run.key, f"Replica/{replica.id}", "Moved", message)

    def _is_idle(self, replica: Replica) -> bool:
        run = self._runs.get((replica.namespace, replica.service))
        if run is None or replica.revision not in run.revisions or replica.id in self._publisher.retiring:
            return False
        revision = run.revisions[replica.revision]
        unit = run.unit_of(revision, self._clock())
        parks = revision.spec.container.parks and replica.state == "ready"
        return parks and unit.is_preemptible(run.override_of(unit.name))

    def _preempt(self, replica: Replica, service: str) -> None:
        run = self._runs[replica.namespace, replica.service]
        self._autoscaler.preempt(run, run.unit_of(run.revisions[replica.revision], self._clock()), service)
        self._reconcile_service(run)
