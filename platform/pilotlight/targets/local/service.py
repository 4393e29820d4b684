"""Run-time state of one service: specification, revisions, scaling units, and the effective traffic split."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pilotlight.targets.local.model import RevisionSpec, ServiceSpec, WorkloadSpec
from pilotlight.targets.local.reconcile import Shares, effective_shares, reachable_revisions
from pilotlight.targets.local.scaling.model import Kpa, Scaling
from pilotlight.targets.local.units import Revision, Unit, initial_replicas, min_replicas
from pilotlight.targets.target import Condition, Key

Json = Any
REVISION_HISTORY_LIMIT: Final = 10  # revisions of a workload that a rollback can return to
TRAFFIC_HISTORY_LIMIT: Final = 20  # traffic splits of earlier releases


class ServiceRun:
    """State without processes or files; the reconciler acts on it.

    `spec` includes traffic overrides but not the bounds of `scale`, which are only in `overrides`. `history` holds the
    shares of earlier releases by workload, newest first.
    """

    def __init__(self, key: Key, generation: int, spec: ServiceSpec, zero_grace_s: float = 0.0) -> None:
        self.key = key
        self.zero_grace_s = zero_grace_s
        self.generation = generation
        self.spec = spec
        self.port = 0
        self.grpc_port = 0
        self.deleting = False
        self.unreadable = ""  # why the stored service cannot be run; then it has no workloads
        self.overrides: Mapping[str, Mapping[str, Json]] = {}
        self.history: dict[str, list[Shares]] = {}
        self.revisions: dict[str, Revision] = {}
        self.units: dict[str, Unit] = {}
        self.conditions: dict[str, Condition] = {}  # as last reported, with their transition times

    def update(self, generation: int, spec: ServiceSpec, now: float) -> None:
        """Apply a new release: the present shares become history, new revisions are added."""
        for workload in self.spec.workloads:
            past = self.history.setdefault(workload.name, [])
            past.insert(0, workload.traffic)
            del past[TRAFFIC_HISTORY_LIMIT:]
        before = {workload.name: workload.revision.name for workload in self.spec.workloads}
        self.generation, self.spec = generation, spec
        for workload in spec.workloads:
            revision = self.add_revision(workload.revision, now)
            if workload.mode != "serverless":
                # A template that comes back after another one must become ready again: it is a new rollout.
                revision.ready_once = revision.ready_once and before.get(workload.name) == revision.name
                self._unit(workload.name, workload.revision, now).scaling = self._scaling(workload.revision)

    def add_revision(self, revision: RevisionSpec, now: float, *, ready_once: bool = False) -> Revision:
        """Return the run-time state of a revision, created on first use."""
        state = self.revisions.get(revision.name)
        if state is None:
            state = self.revisions[revision.name] = Revision(revision, now, ready_once)
        elif not state.ready_once:  # deployed again: restart the progress deadline and drop the backoff
            state.deadline_exceeded, state.load_failed, state.failures = False, False, 0
            state.created_at, state.next_start = now, 0.0
        state.spec = revision
        return state

    def unit_of(self, revision: Revision, now: float) -> Unit:
        serverless = self._mode(revision.spec.workload) == "serverless"
        return self._unit(revision.name if serverless else revision.spec.workload, revision.spec, now)

    def _unit(self, name: str, revision: RevisionSpec, now: float) -> Unit:
        unit = self.units.get(name)
        if unit is None:
            scaling = self._scaling(revision)
            unit = Unit(name, scaling, now, revision.container.cpu_request, desired=initial_replicas(scaling))
            self.units[name] = unit
        return unit

    def _scaling(self, revision: RevisionSpec) -> Scaling:
        scaling = revision.scaling
        # Knative's grace period lets its network reprogram before the last pod ends; this gateway confirms instead.
        return replace(scaling, grace_s=self.zero_grace_s) if isinstance(scaling, Kpa) else scaling

    def _mode(self, workload: str) -> str:
        return next((each.mode for each in self.spec.workloads if each.name == workload), "serverless")

    def override_of(self, unit: str) -> Mapping[str, Json]:
        """Return the overrides of the unit's workload."""
        revision = self.revisions.get(unit)
        return self.overrides.get(revision.spec.workload if revision else unit) or {}

    def revisions_of(self, workload: str) -> list[str]:
        return [name for name, revision in self.revisions.items() if revision.spec.workload == workload]

    def shares(self, workload: str) -> Shares:
        """Return the effective shares: the specified ones once all their revisions have been ready, else older ones."""
        spec = self.spec.workload(workload)
        ready_once = {name for name, revision in self.revisions.items() if revision.ready_once}
        return effective_shares([spec.traffic, *self.history.get(workload, ())], ready_once)

    def reachable_revisions(self, workload: str) -> set[str]:
        return reachable_revisions(self.shares(workload))

    def required_revisions(self, workload: WorkloadSpec) -> set[str]:
        """Return the revisions that may have replicas: those with traffic, and those of the release not ready yet.

        As in Knative the latest one is started once even if overrides give it no traffic, so that a deploy reports
        whether it works.
        """
        ready = {name for name, revision in self.revisions.items() if revision.ready_once}
        return self.reachable_revisions(workload.name) | (_release_revisions(workload) & self.revisions.keys()) - ready

    def reset_idle_readiness(self) -> None:
        """Reset readiness of revisions that receive no traffic; they must pass probes again before they do."""
        for workload in self.spec.workloads:
            if workload.mode != "serverless":
                continue  # during a rolling update replicas of old templates still serve
            in_use = _release_revisions(workload) | self.reachable_revisions(workload.name)
            for name in self.revisions_of(workload.name):
                if name not in in_use:
                    revision = self.revisions[name]
                    revision.ready_once, revision.deadline_exceeded = False, False
                    revision.failure, revision.failures = "", 0

    def unavailable_reason(self, revision: Revision) -> str:
        """Return why requests should fail instead of waiting; empty while a replica may still become ready."""
        return (
            f"{revision.name} cannot start: {revision.failure}"
            if revision.deadline_exceeded or revision.failures > 2
            else ""
        )

    def restore_scale(self, counts: Mapping[str, int], now: float) -> None:
        """Set desired counts after a restart: proven revisions continue with their living replicas (`counts`)."""
        for revision in self.revisions.values():
            unit = self.unit_of(revision, now)
            if revision.ready_once:
                unit.desired = max(min_replicas(unit.bounded(self.override_of(unit.name))), counts.get(unit.name, 0))

    def expired_revisions(self, running: Collection[str]) -> list[tuple[str, str]]:
        """Return (workload, revision) beyond the history limit that have neither traffic nor replicas (`running`)."""
        expired: list[tuple[str, str]] = []
        for workload in self.spec.workloads:
            in_use = self.required_revisions(workload) | {workload.revision.name, *running}
            by_age = sorted(self.revisions_of(workload.name), key=lambda name: self.revisions[name].created_at)
            expired += [(workload.name, name) for name in by_age[:-REVISION_HISTORY_LIMIT] if name not in in_use]
        return expired

    def latest_revisions(self) -> Sequence[Revision]:
        return [self.revisions[workload.revision.name] for workload in self.spec.workloads]


def _release_revisions(workload: WorkloadSpec) -> set[str]:
    """Return the revisions that a release names: those in its traffic split, and the one it creates."""
    return {share.revision for share in workload.traffic} | {workload.revision.name}
