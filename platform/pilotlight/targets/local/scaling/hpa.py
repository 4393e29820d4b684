"""HorizontalPodAutoscaler (replica_calculator.go): one proposal per metric, the largest wins; behavior limits its rate.

Within the tolerance of 10 % nothing changes. A missing metric prevents scale-down.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pilotlight.targets.local.scaling.types import Hpa, Metric, Observed, Rule, ScalingRules

Points = tuple[tuple[float, int], ...]  # time and count, or time and change; oldest first


@dataclass(frozen=True, slots=True)
class History:
    """Recommendations within the windows, and scale events within the longest policy period."""

    highs: Points = ()  # down window as a monotonic queue: without entries below a later one
    lows: Points = ()  # up window, likewise
    ups: Points = ()  # scale events: time and replicas added
    downs: Points = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class HpaResult:
    desired: int
    reason: str
    rule: Rule
    history: History


def decide(
    rules: Hpa, values: Mapping[str, float | None], observed: Observed, current: int, history: History, now: float
) -> HpaResult:
    """Decide a count above zero; `rules.min_replicas` is at least 1, scale to zero is KEDA's."""
    # Out of bounds, such as after `scale`: corrected at once, without windows and policies.
    if current > rules.max_replicas:
        return _bounded(rules, history, current, rules.max_replicas, "maximum", now)
    if current < rules.min_replicas:
        return _bounded(rules, history, current, rules.min_replicas, "minimum", now)
    best, missing = largest_proposal(rules.metrics, values, observed, current, rules.tolerance)
    if best is None:
        names = " and ".join(missing)
        return HpaResult(current, f"held at {current}: {names} has no value", "missing", history)
    steady, history = stabilize(rules, history, best.count, current, now)
    count, note = limit_rate(rules, history, steady, current, now)
    history = record_scale_event(rules, history, current, count, now)
    return _result(rules, best, steady, count, current, note, history)


def largest_proposal(
    metrics: Sequence[Metric], values: Mapping[str, float | None], observed: Observed, current: int, tolerance: float
) -> tuple[Proposal | None, list[str]]:
    """Return the largest proposal and the missing metrics; None: hold, since a missing metric might need more."""
    missing = [metric.name for metric in metrics if values.get(metric.name) is None]
    best: Proposal | None = None
    for metric in metrics:
        if (value := values.get(metric.name)) is not None:
            proposal = propose(metric, value, current, observed.ready, tolerance)
            if best is None or proposal.count > best.count:
                best = proposal
    if best is not None and missing and best.count < current:
        return None, missing
    return best, missing


def propose(metric: Metric, value: float, current: int, ready: int, tolerance: float) -> Proposal:
    """Return the count that one metric proposes; `current` is the desired count so far.

    Value         ceil(ready × value / target)
    AverageValue  ceil(value / target): the value is a total that the replicas share
    Utilization   ceil(ready × mean / target); on scale-up, starting replicas count as idle
    """
    if metric.kind == "AverageValue" and metric.source not in ("cpu", "memory"):
        reason = f"{_amount(metric, value)}, target {metric.target:.4g} per replica"
        if current and _within_tolerance(value / (metric.target * current), tolerance):
            return Proposal(current, f"{reason}, within the tolerance of {tolerance:.0%}")
        return Proposal(_ceil(value / metric.target), reason)
    ratio = value / metric.target
    reason = f"{_amount(metric, value)}, target {_amount(metric, metric.target)[len(metric.name) + 1 :]}"
    if current == 0:
        return Proposal(_ceil(ratio), reason)
    # As the HPA controller: on scale-up unready pods count with 0 usage, so that a slow start does not scale further.
    starting = max(0, current - ready) if metric.source in ("cpu", "memory") and ratio > 1 else 0
    spread = ratio * ready / (ready + starting) if starting else ratio
    if _within_tolerance(spread, tolerance) or (starting and spread < 1):
        return Proposal(current, f"{reason}, within the tolerance of {tolerance:.0%}")
    count = _ceil(ratio * ready)
    reversed_direction = starting and count < current  # the correction must not turn a scale-up into a scale-down
    return Proposal(current if reversed_direction else count, f"{reason}, {ready} ready")


def initial_history(current: int, now: float) -> History:
    """Return a history with the present count as first recommendation: a restart must not scale down at once."""
    return History(((now, current),), ((now, current),))


def stabilize(rules: Hpa, history: History, wanted: int, current: int, now: float) -> tuple[int, History]:
    """Return the highest recommendation of the window when scaling down, the lowest when scaling up."""
    highs = [(at, n) for at, n in history.highs if at > now - rules.down.window_s and n > wanted]
    lows = [(at, n) for at, n in history.lows if at > now - rules.up.window_s and n < wanted]
    highest = max((n for _, n in highs), default=wanted)
    lowest = min((n for _, n in lows), default=wanted)
    history = replace(history, highs=(*highs, (now, wanted)), lows=(*lows, (now, wanted)))
    # As in Kubernetes: move only if every recommendation of the window agrees on the direction.
    return min(max(current, lowest), highest), history


def limit_rate(rules: Hpa, history: History, wanted: int, current: int, now: float) -> tuple[int, str]:
    """Return the count that policies and bounds permit, and which of them limited it."""
    # The events of the period may have used up a policy: then hold, never reverse.
    if wanted > current:
        allowed = max(current, _policy_limit(rules.up, history, current, now, up=True))
        if wanted > min(allowed, rules.max_replicas):
            bound = rules.max_replicas <= allowed
            note = f"maximum {rules.max_replicas}" if bound else _policy_note(rules.up, "more")
            return min(allowed, rules.max_replicas), note
    elif wanted < current:
        allowed = min(current, _policy_limit(rules.down, history, current, now, up=False))
        if wanted < max(allowed, rules.min_replicas):
            bound = rules.min_replicas >= allowed
            note = f"minimum {rules.min_replicas}" if bound else _policy_note(rules.down, "fewer")
            return max(allowed, rules.min_replicas), note
    return wanted, ""


def record_scale_event(rules: Hpa, history: History, before: int, after: int, now: float) -> History:
    """Return the history with the change just made, without events older than every policy's period."""
    longest = max((policy.period_s for policy in (*rules.up.policies, *rules.down.policies)), default=0.0)
    ups = tuple((at, n) for at, n in history.ups if at > now - longest)
    downs = tuple((at, n) for at, n in history.downs if at > now - longest)
    if after > before:
        ups = (*ups, (now, after - before))
    elif after < before:
        downs = (*downs, (now, before - after))
    return replace(history, ups=ups, downs=downs)


def _policy_limit(rules: ScalingRules, history: History, current: int, now: float, *, up: bool) -> int:
    """Return the highest count that the policies permit, or the lowest when scaling down."""
    if rules.select == "Disabled" or not rules.policies:
        return current
    # As the HPA controller: rounded up when scaling up, else truncated; to digits first, since 1 + 10 / 100 is inexact.
    sign, whole = (1, math.ceil) if up else (-1, math.trunc)
    allowed = []
    for policy in rules.policies:
        since = now - policy.period_s
        changed = sum(n for at, n in history.ups if at > since) - sum(n for at, n in history.downs if at > since)
        before = current - changed  # replicas at the start of the policy's period
        percent = whole(round(before * (1 + sign * policy.value / 100), 6))
        allowed.append(before + sign * policy.value if policy.type == "Pods" else percent)
    return max(allowed) if up == (rules.select == "Max") else min(allowed)


def _policy_note(rules: ScalingRules, word: str) -> str:
    if rules.select == "Disabled":
        return f"scaling to {word} replicas is disabled"
    steps = (f"{p.value}{' %' if p.type == 'Percent' else ''} {word} in {p.period_s:g} s" for p in rules.policies)
    return f"at most {(' or ' if rules.select == 'Max' else ' and ').join(steps)}"


def _within_tolerance(ratio: float, tolerance: float) -> bool:
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


def _ceil(count: float) -> int:
    # Rounded first: 3 × 0.1 / 0.3 is 1.0000000000000002 in floats, and needs one replica, not two.
    return math.ceil(round(count, 9))


def _amount(metric: Metric, value: float) -> str:
    return f"{metric.name} {value:.4g}{' %' if metric.kind == 'Utilization' else ''}"


def _bounded(rules: Hpa, history: History, current: int, count: int, bound: Rule, now: float) -> HpaResult:
    return HpaResult(count, f"{count}: {bound}", bound, record_scale_event(rules, history, current, count, now))


def _result(
    rules: Hpa, best: Proposal, steady: int, count: int, current: int, note: str, history: History
) -> HpaResult:
    if steady != best.count:
        side, rule = ("scale-down", rules.down) if best.count < steady else ("scale-up", rules.up)
        reason = f"{side} window of {rule.window_s:g} s, {best.count} wanted by {best.reason}"
        start = f"held at {count}" if count == current else f"{count}"
        return HpaResult(count, f"{start}: {reason}" + (f", {note}" if note else ""), "window", history)
    rule_word: Rule = "bound" if note.startswith(("maximum", "minimum")) else "policy" if note else "metrics"
    return HpaResult(count, f"{count}: {best.reason}" + (f", {note}" if note else ""), rule_word, history)
