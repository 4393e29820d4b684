"""Brings the replicas of a service to what is wanted: starts what is missing, retires what is too much.

Called whenever something may have changed; doing nothing is its most frequent outcome. It decides by `reconcile` and
acts through the supervisor (starting) and the publisher (retiring, once no request can come).
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from pilotlight.targets.local.model import WorkloadSpec
from pilotlight.targets.local.peers import Peers, drain_of
from pilotlight.targets.local.publishing import Publisher
from pilotlight.targets.local.reconcile import counts, rolling, to_stop
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.supervisor.backoff import crashes_after, delay
from pilotlight.targets.local.supervisor.replica import AWAY, Launch, Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.local.units import Revision, initial

ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes: no vowels, no word


class Fleet:
    """`later` calls back after some seconds: a crashed revision is looked at again when its pause is over."""

    def __init__(
        self,
        supervisor: Supervisor,
        publisher: Publisher,
        started: Callable[[Replica], None],
        later: Callable[[float, ServiceRun], None],
        peers: Peers,
    ) -> None:
        self.supervisor = supervisor
        self.publisher = publisher
        self._started = started
        self._later = later
        self._peers = peers

    def living(self, run: ServiceRun) -> list[Replica]:
        """Those of the service that have not ended."""
        return [
            replica
            for replica in self.supervisor.replicas()
            if (replica.namespace, replica.service) == run.key and replica.state != "exited"
        ]

    def staying(self, run: ServiceRun) -> list[Replica]:
        """Those that are not on their way out."""
        leaving = self.publisher.retiring
        return [found for found in self.living(run) if found.state != "draining" and found.id not in leaving]

    def adjust(self, run: ServiceRun, now: float) -> None:
        staying = self.staying(run)
        if run.deleting:
            self._retire(staying)
            return
        for workload in run.spec.workloads:
            mine = [replica for replica in staying if replica.workload == workload.name]
            if workload.mode == "serverless":
                self._each_revision(run, workload, mine, now)
            else:
                self._rolling(run, workload, mine, now)
        known = {workload.name for workload in run.spec.workloads}
        self._retire(replica for replica in staying if replica.workload not in known)

    def _each_revision(self, run: ServiceRun, workload: WorkloadSpec, mine: Sequence[Replica], now: float) -> None:
        needed = run.needed(workload)
        for name in run.revisions_of(workload.name):
            revision = run.revisions[name]
            own = [replica for replica in mine if replica.revision == name]
            if name in needed:
                self._scale(run, revision, own, self.wanted(run, revision, now), now)
            else:
                self._retire(own)

    def _rolling(self, run: ServiceRun, workload: WorkloadSpec, mine: Sequence[Replica], now: float) -> None:
        latest = run.revisions[workload.revision.name]
        new = [replica for replica in mine if replica.revision == latest.name]
        old = [replica for replica in mine if replica.revision != latest.name]
        desired = run.unit_of(latest, now).desired
        stable = self._stable(run, workload)
        if stable is not None and not latest.ready_once and (workload.surge or workload.unavailable):
            self._scale(run, stable, [found for found in old if found.revision == stable.name], desired, now)
            self._scale(run, latest, new, self.wanted(run, latest, now) and 1, now)
            return
        wanted_new, kept_old = rolling(
            self.wanted(run, latest, now), counts(new), counts(old), workload.surge, workload.unavailable
        )
        self._retire(to_stop(old, len(old) - kept_old))
        self._scale(run, latest, new, wanted_new, now)

    def _stable(self, run: ServiceRun, workload: WorkloadSpec) -> Revision | None:
        """The revision that served before the one that has not answered yet."""
        others = [run.revisions[name] for name in run.revisions_of(workload.name) if name != workload.revision.name]
        return max((found for found in others if found.ready_once), key=lambda found: found.created_at, default=None)

    def wanted(self, run: ServiceRun, revision: Revision, now: float) -> int:
        """As its autoscaler says; a revision that never answered is started to see whether it does."""
        unit = run.unit_of(revision, now)
        if revision.ready_once:
            return unit.desired
        return 0 if revision.given_up else max(1, min(unit.desired, initial(unit.scaling)))

    def _scale(self, run: ServiceRun, revision: Revision, mine: Sequence[Replica], wanted: int, now: float) -> None:
        parked = [replica for replica in mine if replica.state in AWAY]
        here = [replica for replica in mine if replica.state not in AWAY]
        if len(here) > wanted:
            self._retire(to_stop(here, len(here) - wanted))
        missing = max(0, wanted - len(here))
        for place, replica in enumerate(parked):
            (self.supervisor.call_back if place < missing else self.supervisor.let_be)(replica.id)
        missing -= len(parked)
        pause = revision.next_start - now
        if missing > 0 and pause > 0:
            self._later(pause, run)
            return
        for _ in range(missing):
            self.start(run, revision, now)

    def parks(self, run: ServiceRun, replica: Replica, now: float) -> bool:
        """Whether one that nobody can reach any more is kept: the last of a revision that has fallen to zero."""
        revision = run.revisions.get(replica.revision)
        workload = next((found for found in run.spec.workloads if found.name == replica.workload), None)
        if run.deleting or revision is None or workload is None or not revision.spec.container.parks:
            return False
        current = workload.mode == "serverless" or workload.revision.name == revision.name
        if not current or (workload.mode == "serverless" and revision.name not in run.needed(workload)):
            return False
        others = [found for found in self.living(run) if found.revision == replica.revision and found.state in AWAY]
        return replica.state == "ready" and not others and not run.unit_of(revision, now).desired

    def start(self, run: ServiceRun, revision: Revision, now: float) -> None:
        revision.last_start = now
        tail = "".join(secrets.choice(ALPHABET) for _ in range(5))
        replica = f"{revision.name}-{tail}"
        spec = replace(revision.spec, container=self._peers.located(revision.spec.container, run.spec))
        told = {**dict.fromkeys(spec.container.replica_env, replica), **drain_of(run.spec, spec.role)}
        self._started(self.supervisor.launch(Launch(replica, spec, told)))

    def _retire(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            self.publisher.retire(replica.id)


def failed(revision: Revision, reason: str, now: float) -> None:
    """Counts a start that failed or a replica that crashed, and says when the next try may be."""
    revision.failures = crashes_after(revision.failures, now, revision.last_start)
    revision.failure = reason
    revision.next_start = now + delay(revision.failures, now, revision.last_start)
    overdue = now - revision.created_at > revision.spec.progress_deadline_s
    if not revision.ready_once and overdue:
        revision.given_up = True
