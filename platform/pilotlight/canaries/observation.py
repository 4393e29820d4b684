"""Observation of a canary before every decision: its releases and revisions, and one look at its metrics.

A runner may have died between changing the service and saving the state, and users deploy manually. So the releases
are authoritative: which manifest is the newest, and does it receive all traffic?
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from pilotlight.canaries import next_action, queries, statistics
from pilotlight.canaries.actions import Action, Conditions, Promote, SetWeight
from pilotlight.canaries.analysis import BASELINE_SUFFIX, Judgement, judge
from pilotlight.canaries.canary_state import Canary
from pilotlight.canaries.queries import MetricScope, Missing, ObservedCounts, QueryAnswer
from pilotlight.errors import NotFound, PlatformError
from pilotlight.k8s.adapters import adapters_of
from pilotlight.k8s.names import ENTRY_ROLES
from pilotlight.release import history
from pilotlight.targets.target import Key, Release, ServiceStatus, Target, find_revision

LOADED_STATES: Final = ("Loaded", "Standby", "Parked")
ROLLED_BACK_NOTE: Final = "canary rolled back"  # prefix of the note of a rollback release
NOT_COMPARED: Final = Missing("empty", "no comparison")
Outcome = Literal["", "promoted", "rolled back", "superseded"]


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Observed rollout. `outcome` is the end of the canary by the newest release; empty: it continues."""

    status: ServiceStatus
    releases: Sequence[Release]
    canary: Canary
    outcome: Outcome = ""
    reason: str = ""

    @property
    def newest(self) -> Release:
        return self.releases[0]

    @property
    def conditions(self) -> Conditions:
        revision = find_revision(self.status, self.canary.revision)
        if revision is None:
            return Conditions(False, newer=self.outcome == "superseded")
        failed = (revision.reason or "its model cannot be loaded") if revision.model_state == "FailedToLoad" else ""
        return Conditions(revision.model_state in LOADED_STATES, failed, self.outcome == "superseded")

    def stable(self) -> Release:
        """Return the release to roll back to. Raise NotFound if it is not stored any more."""
        release = find_release(self.releases, self.canary.stable_generation)
        if release is None:
            message = (
                f"generation {self.canary.stable_generation} of {self.newest.name}, to roll back to, is not stored"
            )
            raise NotFound(message, "deploy its manifest: platformctl deploy -f FILE")
        return release


def observe(target: Target, key: Key, canary: Canary) -> RolloutState:
    """Return the rollout as the target reports it."""
    status, releases = target.status(key), history.releases(target, key)
    if releases[0].generation == canary.generation:
        return RolloutState(status, releases, canary)
    outcome = _outcome(releases, canary)
    if not outcome:  # a weight of this canary, released by a runner that died since, or manually
        canary = replace(canary, generation=releases[0].generation)
    if outcome != "rolled back":
        return RolloutState(status, releases, canary, outcome)
    note = releases[0].note
    automatic = note.startswith(ROLLED_BACK_NOTE)
    reason = note.removeprefix(ROLLED_BACK_NOTE).removeprefix(": ") if automatic else f"manual: {note}"
    return RolloutState(status, releases, canary, outcome, reason)


def _outcome(releases: Sequence[Release], canary: Canary) -> Outcome:
    newest = releases[0]
    document, has_all_traffic = history.released_document(newest), history.receives_all_traffic(newest)
    own = find_release(releases, canary.generation)
    if own is not None and history.released_document(own) == document:
        return "promoted" if has_all_traffic else ""
    stable = find_release(releases, canary.stable_generation)
    if stable is not None and history.released_document(stable) == document and has_all_traffic:
        return "rolled back"
    return "superseded"


def find_release(releases: Sequence[Release], generation: int) -> Release | None:
    return next((each for each in releases if each.generation == generation), None)


def revision_names(canary: Release, stable: Release) -> tuple[str, str]:
    """Return canary and stable revision of the changed component that is first in the request path."""
    before = sorted(history.revisions(stable))
    ranks = {f"{canary.name}-{role}": rank for rank, role in enumerate(ENTRY_ROLES)}
    changed = history.revisions(canary).difference(before)
    if not changed and (adapters := _adapter_names(canary, stable)) is not None:
        return adapters
    if not changed:
        raise NotFound(f"the document of {canary.name} results in the same pods, so there is nothing to test")
    first = min(changed, key=lambda name: (ranks.get(name.rpartition("-")[0], len(ranks)), name))
    workload = first.rpartition("-")[0]
    previous = (name for name in before if name.rpartition("-")[0] == workload)
    return first, next(previous, before[0] if before else "")


def _adapter_names(canary: Release, stable: Release) -> tuple[str, str] | None:
    """Return the engine's names of an adapter that replaces another, and of that; None: no adapter does."""
    old = [each for manifest in stable.manifests for each in adapters_of(manifest)]
    new = (each for manifest in canary.manifests for each in adapters_of(manifest) if each.dynamic)
    replaced = (
        (each.model, before.model)
        for each in new
        for before in old
        if before.name == each.name and all(each.model != known.model for known in old)
    )
    return next(replaced, None)


def measure(target: Target, state: RolloutState, at: str) -> Judgement:
    """Query the metrics and return the judgement."""
    canary, policy = state.canary, state.canary.policy
    scope, baseline_scope = _scopes(state)
    paired_canary, baseline = _compared(target, state, scope, baseline_scope)
    shown = queries.display_queries(policy, scope, baseline_scope.revision)
    if policy.compare:
        compared_scope = scope if canary.strata else queries.within_last(scope, next_action.comparison_window_s(canary))
        compared_queries = queries.display_queries(policy, compared_scope, baseline_scope.revision)
        shown = {**{name + BASELINE_SUFFIX: text for name, text in compared_queries.items()}, **shown}
    observed = paired_canary
    if not policy.compare or any(not each.query for each in policy.checks):
        observed = _observed(target, scope, running=_is_running(state, canary.revision))
    names = [each.name for each in policy.checks if each.query]
    query_values = {name: queries.single_value(_answer(target, shown[name]), name) for name in names}
    earlier = statistics.earlier_strata(canary)
    return judge(policy, observed, baseline, query_values, canary.measurements, at, shown, paired_canary, earlier)


def prime_metrics(target: Target, state: RolloutState, action: Action) -> None:
    """Query both revisions right before the first weight: the embedded metrics record from the first query on, and the
    counts before the canary must be known to be subtracted."""
    first = isinstance(action, SetWeight | Promote) and not state.canary.weight
    for scope in _scopes(state) if first else ():
        for text in queries.metric_queries(scope).values():
            _answer(target, text)


def _scopes(state: RolloutState) -> tuple[MetricScope, MetricScope]:
    canary, status = state.canary, state.status
    current, stable = find_revision(status, canary.revision), find_revision(status, canary.stable)
    names = current.name if current else canary.revision, stable.name if stable else canary.stable
    return queries.metric_scopes(status.namespace, status.name, *names, canary.policy, canary.observed_s)


def _compared(
    target: Target, state: RolloutState, scope: MetricScope, baseline_scope: MetricScope
) -> tuple[ObservedCounts | Missing, ObservedCounts | Missing]:
    """Return both variants within the same window, in which their weights were constant."""
    canary = state.canary
    seconds = next_action.comparison_window_s(canary)
    if not canary.policy.compare:
        return NOT_COMPARED, NOT_COMPARED
    if seconds < next_action.MIN_COMPARISON_S:
        early = Missing("early", f"it has had {canary.weight} % for too short a time to compare")
        return early, early
    return (
        _observed(target, queries.within_last(scope, seconds), running=_is_running(state, canary.revision)),
        _observed(target, queries.within_last(baseline_scope, seconds), running=_is_running(state, canary.stable)),
    )


def _is_running(state: RolloutState, revision: str) -> bool:
    status = find_revision(state.status, revision)
    return status is not None and status.ready > 0


def _observed(target: Target, scope: MetricScope, *, running: bool) -> ObservedCounts | Missing:
    answers = {name: _answer(target, text) for name, text in queries.metric_queries(scope).items()}
    return queries.read_answers(answers, scope, running=running)


def _answer(target: Target, promql: str) -> QueryAnswer:
    try:
        return target.query(promql)
    except PlatformError as error:
        return Missing("unreachable", str(error))
