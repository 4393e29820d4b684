"""One look at the metrics of a canary: questions asked of the target, answers judged. Between looking and steps.

Nobody to be asked, nothing scraped and nobody who asks the service are different answers, and none is a failure.
"""

from typing import Final

from pilotlight.canary import queries, steps, strata
from pilotlight.canary.judge import BASELINE, Judgement, judge
from pilotlight.canary.looking import Standing, row_of
from pilotlight.canary.moves import Move, Promote, SetWeight
from pilotlight.canary.queries import Answer, Missing, Observed, Side
from pilotlight.errors import PlatformError
from pilotlight.targets.target import Target

NOBODY_ASKED: Final = Missing("empty", "nobody asked to compare")


def measure(target: Target, standing: Standing, at: str) -> Judgement:
    canary, policy = standing.canary, standing.canary.policy
    ours, theirs = _sides(standing)
    beside, baseline = _compared(target, standing, ours, theirs)
    asked = queries.asked(policy, ours, theirs.revision)
    if policy.compare:
        told = ours if canary.strata else queries.lately(ours, steps.comparable_s(canary))
        both = queries.asked(policy, told, theirs.revision)
        asked = {**{name + BASELINE: text for name, text in both.items()}, **asked}
    observed = beside
    if not policy.compare or any(not each.query for each in policy.checks):
        observed = _observed(target, ours, running=_runs(standing, canary.revision))
    own = {
        each.name: queries.number(_answer(target, asked[each.name]), each.name) for each in policy.checks if each.query
    }
    return judge(policy, observed, baseline, own, canary.measurements, at, asked, beside, strata.before(canary))


def look_before(target: Target, standing: Standing, move: Move) -> None:
    """Right before the first share: the embedded platform keeps metrics from the first question on, and what a revision
    did before its canary can be told apart only where it is known."""
    first = isinstance(move, SetWeight | Promote) and not standing.canary.weight
    for side in _sides(standing) if first else ():
        for text in queries.questions(side).values():
            _answer(target, text)


def _sides(standing: Standing) -> tuple[Side, Side]:
    canary, status = standing.canary, standing.status
    fresh, stable = row_of(status, canary.revision), row_of(status, canary.stable)
    names = fresh.name if fresh else canary.revision, stable.name if stable else canary.stable
    return queries.sides(status.namespace, status.name, *names, canary.policy, canary.observed_s)


def _compared(
    target: Target, standing: Standing, ours: Side, theirs: Side
) -> tuple[Observed | Missing, Observed | Missing]:
    """Both over the very same time, in which their shares stayed as they are."""
    canary = standing.canary
    seconds = steps.comparable_s(canary)
    if not canary.policy.compare:
        return NOBODY_ASKED, NOBODY_ASKED
    if seconds < steps.LEAST_COMPARED_S:
        early = Missing("early", f"it has had {canary.weight} % for too short a time to be compared")
        return early, early
    return (
        _observed(target, queries.lately(ours, seconds), running=_runs(standing, canary.revision)),
        _observed(target, queries.lately(theirs, seconds), running=_runs(standing, canary.stable)),
    )


def _runs(standing: Standing, revision: str) -> bool:
    row = row_of(standing.status, revision)
    return row is not None and row.ready > 0


def _observed(target: Target, side: Side, *, running: bool) -> Observed | Missing:
    answers = {name: _answer(target, text) for name, text in queries.questions(side).items()}
    return queries.read(answers, side, running=running)


def _answer(target: Target, promql: str) -> Answer:
    try:
        return target.query(promql)
    except PlatformError as error:
        return Missing("unreachable", str(error))
