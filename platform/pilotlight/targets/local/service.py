"""One service at run time: its specification, its revisions and their units, and how its traffic is split right now."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pilotlight.targets.local.model import RevisionSpec, ServiceSpec, WorkloadSpec
from pilotlight.targets.local.reconcile import Shares, reachable, routed
from pilotlight.targets.local.scaling.model import Kpa, Scaling
from pilotlight.targets.local.units import Revision, Unit, initial, least
from pilotlight.targets.target import Condition, Key

Json = Any
KEPT: Final = 10  # revisions of a workload that a rollback can go back to
PAST: Final = 20  # shares of earlier releases that are remembered


class ServiceRun:
    """Holds no process and no file: the engine acts on what is decided here.

    `spec` has the shares that were set by hand in it, but not the bounds of `scale`: those are `overrides`.
    `history` are the shares that earlier releases gave to each workload, newest first.
    """

    def __init__(self, key: Key, generation: int, spec: ServiceSpec, zero_grace_s: float = 0.0) -> None:
        self.key = key
        self.zero_grace_s = zero_grace_s
        self.generation = generation
        self.spec = spec
        self.port = 0
        self.grpc_port = 0
        self.deleting = False
        self.unreadable = ""  # why what is stored of it cannot be run; then it has no workloads
        self.overrides: Mapping[str, Mapping[str, Json]] = {}
        self.history: dict[str, list[Shares]] = {}
        self.revisions: dict[str, Revision] = {}
        self.units: dict[str, Unit] = {}
        self.conditions: dict[str, Condition] = {}  # as last told, with the time since when they hold

    def update(self, generation: int, spec: ServiceSpec, now: float) -> None:
        """Takes a new release over: the shares so far become history, the new revisions come to be."""
        for workload in self.spec.workloads:
            past = self.history.setdefault(workload.name, [])
            past.insert(0, workload.traffic)
            del past[PAST:]
        before = {workload.name: workload.revision.name for workload in self.spec.workloads}
        self.generation, self.spec = generation, spec
        for workload in spec.workloads:
            found = self.know(workload.revision, now)
            if workload.mode != "serverless":
                found.ready_once = found.ready_once and before.get(workload.name) == found.name
                self._unit(workload.name, workload.revision, now).scaling = self._scaling(workload.revision)

    def know(self, revision: RevisionSpec, now: float, *, ready_once: bool = False) -> Revision:
        """The run-time side of a revision, made when it is first heard of."""
        found = self.revisions.get(revision.name)
        if found is None:
            found = self.revisions[revision.name] = Revision(revision, now, ready_once)
        elif not found.ready_once:  # deployed again: it gets another chance, at once
            found.given_up, found.refused, found.failures = False, False, 0
            found.created_at, found.next_start = now, 0.0
        found.spec = revision
        return found

    def unit_of(self, revision: Revision, now: float) -> Unit:
        serverless = self._mode(revision.spec.workload) == "serverless"
        return self._unit(revision.name if serverless else revision.spec.workload, revision.spec, now)

    def _unit(self, name: str, revision: RevisionSpec, now: float) -> Unit:
        found = self.units.get(name)
        if found is None:
            scaling = self._scaling(revision)
            found = Unit(name, scaling, now, revision.container.cpu_request, desired=initial(scaling))
            self.units[name] = found
        return found

    def _scaling(self, revision: RevisionSpec) -> Scaling:
        """Knative waits before the last replica goes, for its network to hear of it; our gateway confirms instead."""
        scaling = revision.scaling
        return replace(scaling, grace_s=self.zero_grace_s) if isinstance(scaling, Kpa) else scaling

    def _mode(self, workload: str) -> str:
        return next((found.mode for found in self.spec.workloads if found.name == workload), "serverless")

    def override_of(self, unit: str) -> Mapping[str, Json]:
        """What `scale` said of the workload that the unit is, or is a revision of."""
        revision = self.revisions.get(unit)
        return self.overrides.get(revision.spec.workload if revision else unit) or {}

    def revisions_of(self, workload: str) -> list[str]:
        return [name for name, found in self.revisions.items() if found.spec.workload == workload]

    def shares(self, workload: str) -> Shares:
        """What holds: the wanted shares once every revision in them has been ready, else those before."""
        spec = self.spec.workload(workload)
        ready_once = {name for name, found in self.revisions.items() if found.ready_once}
        return routed([spec.traffic, *self.history.get(workload, ())], ready_once)

    def reachable(self, workload: str) -> set[str]:
        return reachable(self.shares(workload))

    def needed(self, workload: WorkloadSpec) -> set[str]:
        """Revisions that must run or be able to: those that get requests, and those that shall.

        The latest one is started once even where shares set by hand lead past it, as Knative does: a deploy ends with
        word of whether it works.
        """
        unproven = {name for name in _asked(workload) if (found := self.revisions.get(name)) and not found.ready_once}
        return self.reachable(workload.name) | unproven

    def doubt(self) -> None:
        """Who gets no request and shall get none must answer again before it does: much may have changed meanwhile."""
        for workload in self.spec.workloads:
            if workload.mode != "serverless":
                continue  # its old replicas serve until the new ones answer, whatever is known of them
            spared = _asked(workload) | self.reachable(workload.name)
            for name in self.revisions_of(workload.name):
                if name not in spared:
                    found = self.revisions[name]
                    found.ready_once, found.given_up, found.failure, found.failures = False, False, "", 0

    def unavailable(self, revision: Revision) -> str:
        """Why nobody should wait for it; empty while a replica may still come."""
        return f"{revision.name} cannot start: {revision.failure}" if revision.given_up or revision.failures > 2 else ""

    def take_up(self, counts: Mapping[str, int], now: float) -> None:
        """After a restart: what was proven goes on with as many replicas as live, not with its first number."""
        for revision in self.revisions.values():
            unit = self.unit_of(revision, now)
            if revision.ready_once:
                unit.desired = max(least(unit.bounded(self.override_of(unit.name))), counts.get(unit.name, 0))

    def forgettable(self, running: Collection[str]) -> list[tuple[str, str]]:
        """(workload, revision) of what is older than the last ten, serves nobody and runs nowhere."""
        found: list[tuple[str, str]] = []
        for workload in self.spec.workloads:
            spare = self.needed(workload) | {workload.revision.name, *running}
            by_age = sorted(self.revisions_of(workload.name), key=lambda name: self.revisions[name].created_at)
            found += [(workload.name, name) for name in by_age[:-KEPT] if name not in spare]
        return found

    def latest(self) -> Sequence[Revision]:
        return [self.revisions[found.revision.name] for found in self.spec.workloads]


def _asked(workload: WorkloadSpec) -> set[str]:
    """What the release is about: the revisions that shall get requests, and the one that it brings."""
    return {share.revision for share in workload.traffic} | {workload.revision.name}
