"""Run-time state of one service: specification, revisions, scaling units with their traffic, effective traffic split.

A scaling unit is a revision of a Knative Service, or a Deployment with all its templates; it holds the state that its
autoscaler needs between two decisions, and the last decision.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pilotlight.gateway.control_link import BackendReport
from pilotlight.prometheus import histograms
from pilotlight.targets.local.manifests.service_spec_types import RevisionSpec, ServiceSpec, WorkloadSpec
from pilotlight.targets.local.scaling.decision import decide, with_bounds
from pilotlight.targets.local.scaling.types import Decision, Fixed, Hpa, Kpa, Observed, Sample, Scaling
from pilotlight.targets.local.store.schema import Verification
from pilotlight.targets.target import Condition, Key, Share

RETENTION_S: Final = 300.0
LONGEST_WINDOW_S: Final = 3600.0
RATE_S: Final = 10.0
Json = Any
Shares = tuple[Share, ...]
UNREACHABLE: Final = "0: it has no traffic and no tag"
FAILURES_TO_REPORT: Final = 2  # a single crash may be transient
REVISION_HISTORY_LIMIT: Final = 10  # revisions of a workload that a rollback can return to
TRAFFIC_HISTORY_LIMIT: Final = 20  # traffic splits of earlier releases


class TrafficLog:
    """Reports of one unit and the per-second samples made of them; `now` is monotonic."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque()
        self.waiting = self.in_flight = self.cold_starts = 0
        self.last_used = -math.inf
        self._reports: deque[tuple[float, BackendReport]] = deque()
        self._concurrency = 0.0
        self._requests = 0.0

    def report(self, report: BackendReport, now: float) -> None:
        self.observe(report.waiting, report.in_flight, report.idle_s, now)
        self.cold_starts += report.cold_starts
        self._concurrency = max(self._concurrency, report.concurrency)
        self._requests += report.requests
        if report.requests:
            self._reports.append((now, report))

    def observe(self, waiting: int, in_flight: int, idle_s: float, now: float) -> None:
        """Record what requests there are, or how long ago the last one was."""
        self.in_flight = in_flight
        self.wait(waiting, now)
        self.last_used = max(self.last_used, now - idle_s)

    def wait(self, waiting: int, now: float) -> None:
        """Record the number of requests that wait."""
        self.waiting = waiting
        self.last_used = now if waiting else self.last_used

    def tick(self, now: float) -> None:
        """End one second: its reports, or their absence, become a sample."""
        load = max(self._concurrency, float(self.waiting))
        self.samples.append(Sample(now, load, self._requests))
        self._concurrency, self._requests = float(self.in_flight + self.waiting), 0.0
        while self.samples and self.samples[0].at < now - LONGEST_WINDOW_S:
            self.samples.popleft()
        self._prune(now)

    def requests(self, now: float) -> int:
        self._prune(now)
        return sum(report.requests for _, report in self._reports)

    def per_second(self, now: float) -> float:
        """Return the mean request rate of the last RATE_S seconds."""
        return sum(report.requests for at, report in self._reports if at > now - RATE_S) / RATE_S

    def error_percent(self, now: float) -> float | None:
        requests = self.requests(now)
        return 100.0 * sum(report.errors for _, report in self._reports) / requests if requests else None

    def quantile_ms(self, share: float, now: float) -> float | None:
        self._prune(now)
        counted = [report.latencies for _, report in self._reports if report.latencies]
        return histograms.latency_ms([sum(column) for column in zip(*counted, strict=True)], share) if counted else None

    def _prune(self, now: float) -> None:
        while self._reports and self._reports[0][0] < now - RETENTION_S:
            self._reports.popleft()


@dataclass(slots=True)
class Revision:
    """Run-time state of one revision. Times are monotonic."""

    spec: RevisionSpec
    created_at: float
    ready_once: bool = False  # a replica has been ready since the revision last received traffic
    failure: str = ""  # why its last start failed or its last replica crashed; empty once it is ready
    failures: int = 0  # in a row: starts that never became ready, and crashes soon after readiness
    start_failed: bool = False  # the last replica that exited had never been ready
    load_failed: bool = False  # the predictor reported that the model cannot be loaded
    deadline_exceeded: bool = False  # the progress deadline passed without a ready replica
    last_start: float = 0.0
    progress_since: float = 0.0  # start of the progress deadline, if later than `created_at`
    next_start: float = 0.0  # earliest, after the backoff of a crash
    ready_since: dict[str, float] = field(default_factory=dict)  # by replica
    cold_start: Mapping[str, float] = field(default_factory=dict)  # seconds by phase of its latest start
    verification: Verification = "unknown"
    restored: bool = False  # by a later control process: these may not be its first answers
    answer_failure: str = ""  # why its first answers failed
    warmup_failure: str = ""  # why its model, which serves, did not answer zeros
    waits_for_gpu: bool = False  # a replica of it does
    context_kept: bool = False  # the driver cannot take the CUDA context of its parked replicas
    parks_never: bool = False  # it cannot be parked, or did not come back as it was: it is stopped instead
    gpu_peak: int = 0  # most bytes of one GPU that a replica has used, since it had requests; 0: not measured

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def parks(self) -> bool:
        return self.spec.container.parks and not self.parks_never

    def retry(self, now: float) -> None:
        """Restart the progress deadline: it is deployed again, or a request came for it."""
        self.deadline_exceeded, self.load_failed, self.progress_since = False, False, now


@dataclass(slots=True)
class Unit:
    name: str
    scaling: Scaling
    created_at: float
    cpu_request: float = 0.0  # cores; the base of CPU utilization
    traffic: TrafficLog = field(default_factory=TrafficLog)
    desired: int = 0
    decision: Decision | None = None
    decided_at: str = ""
    decisions: Counter[str] = field(default_factory=Counter)  # that changed the count, by rule
    metrics: dict[str, float | None] = field(default_factory=dict)

    def bounded(self, override: Mapping[str, Json]) -> Scaling:
        least, most = override.get("minReplicas"), override.get("maxReplicas")
        return with_bounds(self.scaling, least, most) if override else self.scaling

    def set_unreachable(self) -> None:
        """Scale to zero and drop the autoscaler's state: no route leads to the unit."""
        if self.desired or self.decision is None:
            self.desired, self.decision = 0, Decision(0, UNREACHABLE, rule="unreachable")

    def decide(self, observed: Observed, override: Mapping[str, Json], now: float) -> Decision:
        state = self.decision.state if self.decision else None
        return decide(self.bounded(override), observed, state, now)


def activation_replicas(scaling: Scaling) -> int:
    """Return the replicas that the first waiting request starts; a paused ScaledObject keeps its count."""
    if isinstance(scaling, Kpa):
        return max(1, scaling.activation_scale, scaling.min_scale)
    if isinstance(scaling, Hpa) and (scaling.paused or scaling.paused_replicas is not None):
        return scaling.paused_replicas or 0
    return max(1, scaling.min_replicas if isinstance(scaling, Hpa) else scaling.replicas)


def initial_replicas(scaling: Scaling) -> int:
    """Return the replicas that a revision starts with, before any load is measured."""
    if isinstance(scaling, Fixed):
        return scaling.replicas
    least = scaling.min_scale if isinstance(scaling, Kpa) else scaling.min_replicas
    return max(1, least, scaling.initial_scale if isinstance(scaling, Kpa) else 0)


def max_replicas(scaling: Scaling) -> int:
    """Return the upper bound; 0: none."""
    return scaling.max_scale if isinstance(scaling, Kpa) else scaling.max_replicas if isinstance(scaling, Hpa) else 0


def min_replicas(scaling: Scaling) -> int:
    if isinstance(scaling, Fixed):
        return scaling.replicas
    return scaling.min_scale if isinstance(scaling, Kpa) else scaling.min_replicas


def effective_shares(history: Sequence[Shares], ready_once: Collection[str]) -> Shares:
    """Return the newest shares whose revisions have all been ready, else the specified ones (`history[0]`).

    As in Knative, traffic moves to a set of revisions only once each has been ready.
    """
    proven = (shares for shares in history if shares and all(share.revision in ready_once for share in shares))
    # On a first deploy nothing is proven: the specified shares route, and the gateway holds their requests.
    return next(proven, history[0] if history else ())


def reachable_revisions(shares: Iterable[Share]) -> set[str]:
    """Return the revisions that receive requests, by weight or by tag."""
    return {share.revision for share in shares if share.percent > 0 or share.tag}


class ServiceRun:
    """State without processes or files; the reconciler acts on it.

    `spec` includes traffic overrides but not the bounds of `scale`, which are only in `overrides`. `history` holds the
    shares of earlier releases by workload, newest first.
    """

    def __init__(self, key: Key, generation: int, spec: ServiceSpec, zero_grace_s: float = 0.0) -> None:
        self.key, self.generation, self.spec, self.zero_grace_s = key, generation, spec, zero_grace_s
        self.ports = {"http": 0, "grpc": 0}  # its own, by kind; 0: none
        self.deleting = False
        self.rolled_back = ""  # why the release before this one was taken back
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
        elif not state.ready_once or state.failures:  # deployed again: restart the progress deadline, drop the backoff
            state.retry(now)
            state.created_at, state.failures, state.next_start = now, 0, 0.0
            state.failure, state.start_failed = "", False
            if state.verification != "verified":
                state.verification, state.answer_failure = "unknown", ""
            state.restored = state.restored and state.ready_once  # it starts anew: its first answers are to come
        state.spec = revision
        return state

    def unit_of(self, revision: Revision, now: float) -> Unit:
        workload = revision.spec.workload
        mode = next((each.mode for each in self.spec.workloads if each.name == workload), "serverless")
        return self._unit(revision.name if mode == "serverless" else workload, revision.spec, now)

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

    def override_of(self, unit: str) -> Mapping[str, Json]:
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
        """Return why requests should fail instead of waiting; empty while a replica may still become ready in time.

        Crashes of replicas that were ready do not count: the next start succeeds like the ones before. Each failed
        request still wakes the revision, so that it serves again once the cause is gone.
        """
        repeated = revision.start_failed and revision.failures > FAILURES_TO_REPORT
        failed = revision.deadline_exceeded or repeated
        return f"{revision.name} cannot start: {revision.failure}" if failed else ""

    @property
    def never_started(self) -> bool:
        """Whether starts of a component that serves the models have failed and none of it has become ready."""
        roles = {workload.role for workload in self.spec.workloads} - {"explainer"}
        components = [[each for each in self.revisions.values() if each.spec.role == role] for role in roles]
        return any(any(each.failure for each in one) and not any(each.ready_once for each in one) for one in components)

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
