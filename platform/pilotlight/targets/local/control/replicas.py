"""Replica controller of the embedded platform: starts missing replicas, retires surplus ones.

Replicas of a Deployment are replaced as in Kubernetes. Effects go through the supervisor (start) and the publisher
(retire, once the gateway routes nothing to a replica). Called on every event; most calls change nothing.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pilotlight.targets.local.control.service_state import Revision, ServiceRun, initial_replicas
from pilotlight.targets.local.gateway.publisher import Publisher
from pilotlight.targets.local.manifests.service_discovery import ComponentAddresses, drain_env
from pilotlight.targets.local.manifests.service_spec_types import WorkloadSpec
from pilotlight.targets.local.scaling.decision import select_for_removal
from pilotlight.targets.local.supervisor.replica_record import (
    PARKED_STATES,
    START_INTERVAL_S,
    Launch,
    Replica,
    crash_backoff,
    failure_count,
    is_termination,
)
from pilotlight.targets.local.supervisor.supervisor import Supervisor

ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes: no vowels, so no words


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Active replicas, and how many of them are ready."""

    total: int
    ready: int


class ReplicaSet:
    """Replicas of all services. `requeue_after` reconciles a service again after some seconds of backoff."""

    def __init__(
        self,
        supervisor: Supervisor,
        publisher: Publisher,
        on_start: Callable[[Replica], None],
        requeue_after: Callable[[float, ServiceRun], None],
        component_addresses: ComponentAddresses,
    ) -> None:
        self.supervisor, self.publisher, self._component_addresses = supervisor, publisher, component_addresses
        self._on_start, self._requeue_after = on_start, requeue_after

    def living(self, run: ServiceRun) -> list[Replica]:
        """Return the service's replicas that have not exited."""
        return [
            replica
            for replica in self.supervisor.replicas()
            if (replica.namespace, replica.service) == run.key and replica.state != "exited"
        ]

    def active(self, run: ServiceRun) -> list[Replica]:
        """Return the service's replicas that are neither draining nor being retired."""
        retiring = self.publisher.retiring
        return [each for each in self.living(run) if each.state != "draining" and each.id not in retiring]

    def reconcile(self, run: ServiceRun, now: float) -> None:
        active = self.active(run)
        if run.deleting:
            self._retire(active)
            return
        for workload in run.spec.workloads:
            replicas = [replica for replica in active if replica.workload == workload.name]
            if workload.mode == "serverless":
                self._reconcile_revisions(run, workload, replicas, now)
            else:
                self._rolling_update(run, workload, replicas, now)
        known = {workload.name for workload in run.spec.workloads}
        self._retire(replica for replica in active if replica.workload not in known)

    def _reconcile_revisions(
        self, run: ServiceRun, workload: WorkloadSpec, replicas: Sequence[Replica], now: float
    ) -> None:
        required = run.required_revisions(workload)
        for name in run.revisions_of(workload.name):
            revision = run.revisions[name]
            own = [replica for replica in replicas if replica.revision == name]
            if name in required:
                self._scale(run, revision, own, self.desired(run, revision, now), now)
            else:
                self._retire(own)

    def _rolling_update(self, run: ServiceRun, workload: WorkloadSpec, replicas: Sequence[Replica], now: float) -> None:
        latest = run.revisions[workload.revision.name]
        new = [replica for replica in replicas if replica.revision == latest.name]
        old = [replica for replica in replicas if replica.revision != latest.name]
        desired = run.unit_of(latest, now).desired
        others = [run.revisions[name] for name in run.revisions_of(workload.name) if name != latest.name]
        stable = max((each for each in others if each.ready_once), key=lambda each: each.created_at, default=None)
        if stable is not None and not latest.ready_once and (workload.surge or workload.unavailable):
            # A template that has never become ready gets a single replica: a broken release must not replace
            # the ones that serve, however large the surge is.
            self._scale(run, stable, [each for each in old if each.revision == stable.name], desired, now)
            self._scale(run, latest, new, self.desired(run, latest, now) and 1, now)
            return
        desired_new, desired_old = rolling_update(
            self.desired(run, latest, now), counts(new), counts(old), workload.surge, workload.unavailable
        )
        self._retire(select_for_removal(old, len(old) - desired_old))
        self._scale(run, latest, new, desired_new, now)

    def desired(self, run: ServiceRun, revision: Revision, now: float) -> int:
        """Return the autoscaler's count; a revision that has never been ready gets at least one replica to prove it."""
        unit = run.unit_of(revision, now)
        if revision.ready_once:
            return unit.desired
        return 0 if revision.deadline_exceeded else max(1, min(unit.desired, initial_replicas(unit.scaling)))

    def _scale(
        self, run: ServiceRun, revision: Revision, replicas: Sequence[Replica], desired: int, now: float
    ) -> None:
        parked = [replica for replica in replicas if replica.state in PARKED_STATES]
        running = [replica for replica in replicas if replica.state not in PARKED_STATES]
        if len(running) > desired:
            self._retire(select_for_removal(running, len(running) - desired))
        missing = max(0, desired - len(running))
        # Parked replicas come first: they hold the model in host memory, which is faster than a cold start.
        for index, replica in enumerate(parked):
            (self.supervisor.unpark if index < missing else self.supervisor.cancel_unpark)(replica.id)
        missing -= len(parked)
        same = [each for each in self.living(run) if each.revision == revision.name]
        if missing > 0 and any(each.state == "draining" and each.reason for each in same):
            return  # one whose start has failed; its exit, which reconciles again, sets the backoff
        backoff = revision.next_start - now
        if missing > 0 and backoff > 0:
            self._requeue_after(backoff, run)
            return
        for _ in range(missing):
            self.start(run, revision, now)

    def should_park(self, run: ServiceRun, replica: Replica, now: float) -> bool:
        """Whether an unrouted replica is parked instead of ended: the last one of a revision scaled to zero."""
        revision = run.revisions.get(replica.revision)
        workload = next((each for each in run.spec.workloads if each.name == replica.workload), None)
        if run.deleting or revision is None or workload is None or not revision.parks:
            return False
        current = workload.mode == "serverless" or workload.revision.name == revision.name
        if not current or (workload.mode == "serverless" and revision.name not in run.required_revisions(workload)):
            return False
        same = [each for each in self.living(run) if each.revision == replica.revision]
        parked = any(each.state in PARKED_STATES for each in same)
        return replica.state in ("ready", "waking") and not parked and not run.unit_of(revision, now).desired

    def start(self, run: ServiceRun, revision: Revision, now: float) -> None:
        revision.last_start = now
        replica = f"{revision.name}-{''.join(secrets.choice(ALPHABET) for _ in range(5))}"
        spec = replace(revision.spec, container=self._component_addresses.resolve(revision.spec.container, run.spec))
        env = {**dict.fromkeys(spec.container.replica_env, replica), **drain_env(run.spec, spec.role)}
        self._on_start(self.supervisor.launch(Launch(replica, spec, env)))

    def _retire(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            self.publisher.retire(replica.id)


def record_exit(revision: Revision, replica: Replica, now: float) -> None:
    """Count an exit, and set the earliest time of the next start; one that we requested never counts as a failure."""
    ready_at = revision.ready_since.pop(replica.id, None)
    if not replica.crashed and ready_at is None:
        return
    ready_s = None if ready_at is None else now - ready_at
    terminated = not replica.crashed or is_termination(replica)
    revision.failures = failure_count(revision.failures, ready_s, terminated)
    if not replica.crashed:
        return
    revision.failure, revision.start_failed = replica.reason, ready_s is None
    revision.load_failed = replica.status.get("state") == "failed"
    earliest = revision.last_start + START_INTERVAL_S if terminated and ready_s is not None else 0.0
    revision.next_start = max(now + crash_backoff(revision.failures), earliest)
    progress_s = now - max(revision.created_at, revision.progress_since)
    if not revision.ready_once and progress_s > revision.spec.progress_deadline_s:
        revision.deadline_exceeded = True


def rolling_update(
    desired: int, new: ReplicaCounts, old: ReplicaCounts, surge: int, unavailable: int
) -> tuple[int, int]:
    """Return how many replicas of the new and of the old template should run now.

    desired 4, surge 1, unavailable 0: 4 old → start 1 → it is ready → stop 1 old → start the next …
    """
    if not old.total:
        return desired, 0
    if not surge and not unavailable:
        return new.total, 0  # Recreate: no new replica before the last old one has ended
    # Never fewer than already run, so that a shrinking surge does not stop new replicas that are starting.
    desired_new = min(desired, max(new.total, desired + surge - old.total))
    spare = new.ready + old.ready - (desired - unavailable)
    # Old replicas that are not ready do not count as available, so they go first and without limit.
    unready_old = old.total - old.ready
    desired_old = old.total - min(old.total, unready_old + max(0, min(spare, old.ready)))
    return desired_new, desired_old if new.ready < desired else 0


def counts(replicas: Iterable[Replica]) -> ReplicaCounts:
    states = [replica.state for replica in replicas]
    return ReplicaCounts(len(states), states.count("ready"))
