"""The HorizontalPodAutoscaler: one proposal per metric, the largest wins, then behavior.py says how fast.

    Value         ceil(ready × value / target)
    AverageValue  ceil(value / target): the value is a total that the replicas share
    Utilization   ceil(ready × mean / target); replicas that start count as idle when there should be more

Within the tolerance of 10 % nothing changes. A metric that nobody could tell never lets replicas go.
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
class Outcome:
    desired: int
    reason: str
    rule: str
    history: History


def propose(metric: Metric, value: float, current: int, ready: int, tolerance: float) -> Proposal:
    """`current` is how many shall run, `ready` how many of them answer."""
    if metric.kind == "AverageValue" and metric.source not in ("cpu", "memory"):
        return _shared(metric, value, current, tolerance)
    ratio = value / metric.target
    said = f"{_amount(metric, value)} / {_amount(metric, metric.target)[len(metric.name) + 1 :]}"
    if current == 0:
        return Proposal(_ceil(ratio), said)
    starting = max(0, current - ready) if metric.source in ("cpu", "memory") and ratio > 1 else 0
    spread = ratio * ready / (ready + starting) if starting else ratio
    if _near(spread, tolerance) or (starting and spread < 1):
        return Proposal(current, f"{said}, within {tolerance:.0%}")
    count = _ceil(ratio * ready)
    turned = starting and count < current
    return Proposal(current if turned else count, f"{said} × {ready} ready")


def _shared(metric: Metric, value: float, current: int, tolerance: float) -> Proposal:
    said = f"{_amount(metric, value)} / {metric.target:g} each"
    if current and _near(value / (metric.target * current), tolerance):
        return Proposal(current, f"{said}, within {tolerance:.0%}")
    return Proposal(_ceil(value / metric.target), said)


def _near(ratio: float, tolerance: float) -> bool:
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


def _ceil(count: float) -> int:
    """A third of 0.3 times three is one replica, not two: floats are rounded before they are rounded up."""
    return math.ceil(round(count, 9))


def _amount(metric: Metric, value: float) -> str:
    return f"{metric.name} {value:.4g}{' %' if metric.kind == 'Utilization' else ''}"


def largest(
    metrics: Sequence[Metric], values: Mapping[str, float | None], observed: Observed, current: int, tolerance: float
) -> tuple[Proposal | None, list[str]]:
    """The largest proposal, and the metrics that nobody could tell; None where nothing may be concluded from them."""
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
) -> Outcome:
    """`rules.min_replicas` is at least 1 here: zero is KEDA's."""
    if current > rules.max_replicas:
        return _bound(rules, history, current, rules.max_replicas, "maximum", now)
    if current < rules.min_replicas:
        return _bound(rules, history, current, rules.min_replicas, "minimum", now)
    best, missing = largest(rules.metrics, values, observed, current, rules.tolerance)
    if best is None:
        names = " and ".join(missing)
        return Outcome(current, f"held at {current}: nobody could tell {names}", "missing", history)
    steady, history = behavior.stabilised(rules, history, best.count, current, now)
    count, note = behavior.limited(rules, history, steady, current, now)
    history = behavior.changed(rules, history, current, count, now)
    return _sentence(rules, best, steady, count, current, note, history)


def _bound(rules: Hpa, history: History, current: int, count: int, word: str, now: float) -> Outcome:
    return Outcome(count, f"{count}: {word}", word, behavior.changed(rules, history, current, count, now))


def _sentence(
    rules: Hpa, best: Proposal, steady: int, count: int, current: int, note: str, history: History
) -> Outcome:
    if steady != best.count:
        side, rule = ("scale-down", rules.down) if best.count < steady else ("scale-up", rules.up)
        reason = f"{side} window of {rule.window_s:g} s, {best.count} by {best.reason}"
        start = f"held at {count}" if count == current else f"{count}"
        return Outcome(count, f"{start}: {reason}" + (f", {note}" if note else ""), "window", history)
    rule_word = "bound" if note.startswith(("maximum", "minimum")) else "policy" if note else "metrics"
    return Outcome(count, f"{count}: {best.reason}" + (f", {note}" if note else ""), rule_word, history)
