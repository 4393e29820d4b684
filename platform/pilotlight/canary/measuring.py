"""One look at the metrics of a canary: query the target, judge the answers.

Unreachable metrics, missing scrapes and missing traffic are different answers, and none of them is a failure.
"""

from typing import Final

from pilotlight.canary import queries, steps, strata
from pilotlight.canary.judge import BASELINE_SUFFIX, Judgement, judge
from pilotlight.canary.looking import RolloutState, revision_status
from pilotlight.canary.moves import Action, Promote, SetWeight
from pilotlight.canary.queries import MetricScope, Missing, ObservedCounts, QueryAnswer
from pilotlight.errors import PlatformError
from pilotlight.targets.target import Target

NOT_COMPARED: Final = Missing("empty", "no comparison")


def measure(target: Target, state: RolloutState, at: str) -> Judgement:
    """Query the metrics and return the judgement."""
    canary, policy = state.canary, state.canary.policy
    scope, baseline_scope = _scopes(state)
    paired_canary, baseline = _compared(target, state, scope, baseline_scope)
    shown = queries.display_queries(policy, scope, baseline_scope.revision)
    if policy.compare:
        compared_scope = scope if canary.strata else queries.within_last(scope, steps.comparison_window_s(canary))
        compared_queries = queries.display_queries(policy, compared_scope, baseline_scope.revision)
        shown = {**{name + BASELINE_SUFFIX: text for name, text in compared_queries.items()}, **shown}
    observed = paired_canary
    if not policy.compare or any(not each.query for each in policy.checks):
        observed = _observed(target, scope, running=_is_running(state, canary.revision))
    names = [each.name for each in policy.checks if each.query]
    query_values = {name: queries.single_value(_answer(target, shown[name]), name) for name in names}
    earlier = strata.earlier_strata(canary)
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
    current, stable = revision_status(status, canary.revision), revision_status(status, canary.stable)
    names = current.name if current else canary.revision, stable.name if stable else canary.stable
    return queries.metric_scopes(status.namespace, status.name, *names, canary.policy, canary.observed_s)


def _compared(
    target: Target, state: RolloutState, scope: MetricScope, baseline_scope: MetricScope
) -> tuple[ObservedCounts | Missing, ObservedCounts | Missing]:
    """Return both variants within the same window, in which their weights were constant."""
    canary = state.canary
    seconds = steps.comparison_window_s(canary)
    if not canary.policy.compare:
        return NOT_COMPARED, NOT_COMPARED
    if seconds < steps.MIN_COMPARISON_S:
        early = Missing("early", f"it has had {canary.weight} % for too short a time to be compared")
        return early, early
    return (
        _observed(target, queries.within_last(scope, seconds), running=_is_running(state, canary.revision)),
        _observed(target, queries.within_last(baseline_scope, seconds), running=_is_running(state, canary.stable)),
    )


def _is_running(state: RolloutState, revision: str) -> bool:
    status = revision_status(state.status, revision)
    return status is not None and status.ready > 0


def _observed(target: Target, scope: MetricScope, *, running: bool) -> ObservedCounts | Missing:
    answers = {name: _answer(target, text) for name, text in queries.metric_queries(scope).items()}
    return queries.read_answers(answers, scope, running=running)


def _answer(target: Target, promql: str) -> QueryAnswer:
    try:
        return target.query(promql)
    except PlatformError as error:
        return Missing("unreachable", str(error))
