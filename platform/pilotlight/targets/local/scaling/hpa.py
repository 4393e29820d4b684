"""HorizontalPodAutoscaler (replica_calculator.go): one proposal per metric, the largest wins; behavior.py limits rates.

    Value         ceil(ready × value / target)
    AverageValue  ceil(value / target): the value is a total that the replicas share
    Utilization   ceil(ready × mean / target); on scale-up, starting replicas count as idle

Within the tolerance of 10 % nothing changes. A missing metric prevents scale-down.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotlight.targets.local.scaling import behavior
from pilotlight.targets.local.scaling.behavior import History
from pilotlight.targets.local.scaling.model import Hpa, Metric, Observed


@dataclass(frozen=True, slots=True)
class Proposal:
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class HpaResult:
    desired: int
    reason: str
    rule: str
    history: History


def propose(metric: Metric, value: float, current: int, ready: int, tolerance: float) -> Proposal:
    """Return the count that one metric proposes; `current` is the desired count so far."""
    if metric.kind == "AverageValue" and metric.source not in ("cpu", "memory"):
        return _shared(metric, value, current, tolerance)
    ratio = value / metric.target
    reason = f"{_amount(metric, value)} / {_amount(metric, metric.target)[len(metric.name) + 1 :]}"
    if current == 0:
        return Proposal(_ceil(ratio), reason)
    # As the HPA controller: on scale-up unready pods count with 0 usage, so that a slow start does not scale further.
    starting = max(0, current - ready) if metric.source in ("cpu", "memory") and ratio > 1 else 0
    spread = ratio * ready / (ready + starting) if starting else ratio
    if _within_tolerance(spread, tolerance) or (starting and spread < 1):
        return Proposal(current, f"{reason}, within {tolerance:.0%}")
    count = _ceil(ratio * ready)
    reversed_direction = starting and count < current  # the correction must not turn a scale-up into a scale-down
    return Proposal(current if reversed_direction else count, f"{reason} × {ready} ready")


def _shared(metric: Metric, value: float, current: int, tolerance: float) -> Proposal:
    reason = f"{_amount(metric, value)} / {metric.target:g} each"
    if current and _within_tolerance(value / (metric.target * current), tolerance):
        return Proposal(current, f"{reason}, within {tolerance:.0%}")
    return Proposal(_ceil(value / metric.target), reason)


def _within_tolerance(ratio: float, tolerance: float) -> bool:
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


def _ceil(count: float) -> int:
    # Rounded first: 3 × 0.1 / 0.3 is 1.0000000000000002 in floats, and needs one replica, not two.
    return math.ceil(round(count, 9))


def _amount(metric: Metric, value: float) -> str:
    return f"{metric.name} {value:.4g}{' %' if metric.kind == 'Utilization' else ''}"


def largest_proposal(
    metrics: Sequence[Metric], values: Mapping[str, float | None], observed: Observed, current: int, tolerance: float
) -> tuple[Proposal | None, list[str]]:
    """Return the largest proposal and the missing metrics; None: hold, since a missing metric might need more."""
    missing = [metric.name for metric in metrics if values.get(metric.name) is None]
    best: Proposal | None = None
    for metric in metrics:
        value = values.get(metric.name)
        if value is None:
            continue
        proposal = propose(metric, value, current, observed.ready, tolerance)
        if best is None or proposal.count > best.count:
            best = proposal
    if best is not None and missing and best.count < current:
        return None, missing
    return best, missing


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
        return HpaResult(current, f"held at {current}: nobody could tell {names}", "missing", history)
    steady, history = behavior.stabilize(rules, history, best.count, current, now)
    count, note = behavior.limit_rate(rules, history, steady, current, now)
    history = behavior.record_scale_event(rules, history, current, count, now)
    return _result(rules, best, steady, count, current, note, history)


def _bounded(rules: Hpa, history: History, current: int, count: int, word: str, now: float) -> HpaResult:
    return HpaResult(count, f"{count}: {word}", word, behavior.record_scale_event(rules, history, current, count, now))


def _result(
    rules: Hpa, best: Proposal, steady: int, count: int, current: int, note: str, history: History
) -> HpaResult:
    if steady != best.count:
        side, rule = ("scale-down", rules.down) if best.count < steady else ("scale-up", rules.up)
        reason = f"{side} window of {rule.window_s:g} s, {best.count} by {best.reason}"
        start = f"held at {count}" if count == current else f"{count}"
        return HpaResult(count, f"{start}: {reason}" + (f", {note}" if note else ""), "window", history)
    rule_word = "bound" if note.startswith(("maximum", "minimum")) else "policy" if note else "metrics"
    return HpaResult(count, f"{count}: {best.reason}" + (f", {note}" if note else ""), rule_word, history)
