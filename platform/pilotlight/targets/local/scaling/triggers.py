"""What the triggers of a ScaledObject say at one moment: values, who is active, and what stands in for those that fail.

Used by keda.py; an HPA without KEDA reads its values through here as well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pilotlight.targets.local.scaling import formula, windows
from pilotlight.targets.local.scaling.model import Fallback, Hpa, Metric, Observed

COMPOSITE: Final = "formula"


@dataclass(frozen=True, slots=True)
class Reading:
    """`metrics` and `values` are what the HPA sees: with a formula one composite metric in place of all others."""

    metrics: tuple[Metric, ...]
    values: Mapping[str, float | None]
    active: bool
    why: str = ""  # the trigger that is active, in numbers
    failed: tuple[str, ...] = ()  # without an answer, and without a fallback that speaks for them
    fallback: str = ""  # why a fallback speaks


def answer(metric: Metric, result: float | None) -> float | None:
    """A query's result as KEDA takes it: empty, NaN and infinite are 0 with ignoreNullValues, else a failure."""
    if result is not None and math.isfinite(result):
        return result
    return 0.0 if metric.ignore_null else None


def values(rules: Hpa, observed: Observed, now: float) -> dict[str, float | None]:
    """By name; what was not asked yet is left out. KEDA hands on thousandths, so that is what is compared."""
    found: dict[str, float | None] = {}
    for metric in rules.metrics:
        if metric.source == "requests" and metric.name not in observed.metrics:
            seen = windows.buckets(observed, "concurrency", rules.polling_s, now)
            value: float | None = windows.average(seen, None, rules.polling_s, now, weighted=False)
        elif metric.name in observed.metrics:
            value = observed.metrics[metric.name]
        else:
            continue
        found[metric.name] = _thousandths(value) if rules.keda and _external(metric) and value is not None else value
    return found


def _external(metric: Metric) -> bool:
    """Whether KEDA asks for it; cpu and memory are between the HPA and the replicas."""
    return metric.source not in ("cpu", "memory")


def _thousandths(value: float) -> float:
    return math.trunc(round(value * 1000, 6)) / 1000


def failures(raw: Mapping[str, float | None], before: Mapping[str, int]) -> dict[str, int]:
    """Polls in a row without an answer, by trigger."""
    return {name: before.get(name, 0) + 1 for name, value in raw.items() if value is None}


def reading(
    rules: Hpa, raw: Mapping[str, float | None], failed: Mapping[str, int], ready: int, current: int
) -> Reading:
    if not rules.keda:
        return Reading(rules.metrics, raw, True)
    given = _over_threshold(rules, raw, failed)
    speaks = given if rules.fallback and rules.fallback.behavior != "scalingModifiers" else ()
    reason = _fallback_reason(given, failed) if speaks else ""
    if rules.formula:
        return _composite(rules, raw, given, speaks, reason, ready, current)
    stood_in = dict(raw)
    for metric in rules.metrics:
        if rules.fallback and metric.name in speaks:
            stood_in[metric.name] = _fallback_value(metric, rules.fallback, ready, current)
    missing = tuple(m.name for m in rules.metrics if _external(m) and stood_in.get(m.name, 0.0) is None)
    active = [m for m in rules.metrics if _is_active(m, stood_in.get(m.name)) or m.name in speaks]
    only_resources = not any(_external(metric) for metric in rules.metrics)
    why = _active_reason(active[0], stood_in.get(active[0].name)) if active else ""
    return Reading(rules.metrics, stood_in, bool(active) or (only_resources and not missing), why, missing, reason)


def _over_threshold(rules: Hpa, raw: Mapping[str, float | None], failed: Mapping[str, int]) -> tuple[str, ...]:
    """Triggers that have failed more often than the fallback tolerates. cpu and memory have no fallback."""
    if rules.fallback is None:
        return ()
    names = (m.name for m in rules.metrics if _external(m) and raw.get(m.name, 0.0) is None)
    return tuple(name for name in names if failed.get(name, 0) > rules.fallback.failure_threshold)


def _fallback_reason(given: tuple[str, ...], failed: Mapping[str, int]) -> str:
    return " and ".join(f"{name} failed {failed[name]} times" for name in given)


def _fallback_value(metric: Metric, fallback: Fallback, ready: int, current: int) -> float | None:
    """The value that makes the HPA want the fallback's replicas; with Value none does while nothing is ready."""
    count = float(fallback_count(fallback, current))
    if metric.kind == "Value":
        if ready == 0:
            return None
        count /= ready
    return _thousandths(metric.target * count)


def fallback_count(fallback: Fallback, current: int) -> int:
    choices = {
        "currentReplicas": current,
        "currentReplicasIfHigher": max(current, fallback.replicas),
        "currentReplicasIfLower": min(current, fallback.replicas),
    }
    return choices.get(fallback.behavior, fallback.replicas)


def _is_active(metric: Metric, value: float | None) -> bool:
    return _external(metric) and value is not None and value > metric.activation


def _active_reason(metric: Metric, value: float | None) -> str:
    if value is None:
        return f"{metric.name} has a fallback"
    return f"{metric.name} {value:.4g} is above {metric.activation:g}"


def _composite(
    rules: Hpa, raw: Mapping[str, float | None], given: tuple[str, ...], speaks: tuple[str, ...], reason: str,
    ready: int, current: int,
) -> Reading:  # fmt: skip
    """One metric out of all. A trigger that failed beyond the threshold is nil where the formula is to handle it."""
    whole = Metric(COMPOSITE, "prometheus", rules.formula_kind, rules.formula_target, rules.formula_activation)
    missing = tuple(name for name, value in raw.items() if value is None and name not in given)
    value: float | None = None
    if speaks and rules.fallback:
        value = _fallback_value(whole, rules.fallback, ready, current)
    elif not missing:
        value = formula.compute(rules.formula, raw)
        if value is None and given and rules.fallback:
            value = rules.fallback.replicas * rules.formula_target
        value = None if value is None else _thousandths(value)
    failed = missing or (() if value is not None else (COMPOSITE,))
    active = not failed and _is_active(whole, value)
    return Reading((whole,), {COMPOSITE: value}, active, _active_reason(whole, value), failed, reason)
