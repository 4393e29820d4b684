"""Trigger evaluation of a ScaledObject: values, activity, and fallbacks for failed triggers.

Used by keda.py; an HPA without KEDA gets its metric values through here as well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pilotlight.targets.local.scaling import formula, windows
from pilotlight.targets.local.scaling.model import Fallback, Hpa, Metric, Observed

COMPOSITE: Final = "formula"


@dataclass(frozen=True, slots=True)
class TriggerValues:
    """Metrics for the HPA; with a formula one composite metric replaces all others."""

    metrics: tuple[Metric, ...]
    values: Mapping[str, float | None]
    active: bool
    why: str = ""  # the active trigger with its value
    failed: tuple[str, ...] = ()  # triggers without a value and without a fallback
    fallback: str = ""  # why a fallback applies


def query_value(metric: Metric, result: float | None) -> float | None:
    """Convert a query result as KEDA does: empty, NaN and infinite are 0 with ignoreNullValues, else a failure."""
    if result is not None and math.isfinite(result):
        return result
    return 0.0 if metric.ignore_null else None


def values(rules: Hpa, observed: Observed, now: float) -> dict[str, float | None]:
    """Return values by metric name, without those not polled yet; KEDA truncates external ones to thousandths."""
    result: dict[str, float | None] = {}
    for metric in rules.metrics:
        if metric.source == "requests" and metric.name not in observed.metrics:
            seen = windows.buckets(observed, "concurrency", rules.polling_s, now)
            value: float | None = windows.average(seen, None, rules.polling_s, now, weighted=False)
        elif metric.name in observed.metrics:
            value = observed.metrics[metric.name]
        else:
            continue
        result[metric.name] = _thousandths(value) if rules.keda and _external(metric) and value is not None else value
    return result


def _external(metric: Metric) -> bool:
    """Whether KEDA provides it; cpu and memory are resource metrics of the HPA."""
    return metric.source not in ("cpu", "memory")


def _thousandths(value: float) -> float:
    return math.trunc(round(value * 1000, 6)) / 1000


def failures(raw: Mapping[str, float | None], before: Mapping[str, int]) -> dict[str, int]:
    """Return consecutive failed polls by trigger."""
    return {name: before.get(name, 0) + 1 for name, value in raw.items() if value is None}


def evaluate(
    rules: Hpa, raw: Mapping[str, float | None], failed: Mapping[str, int], ready: int, current: int
) -> TriggerValues:
    if not rules.keda:
        return TriggerValues(rules.metrics, raw, True)
    failing = _over_threshold(rules, raw, failed)
    # With behavior scalingModifiers the formula handles failed triggers itself (`??`).
    replaced = failing if rules.fallback and rules.fallback.behavior != "scalingModifiers" else ()
    reason = " and ".join(f"{name} failed {failed[name]} times" for name in replaced)
    if rules.formula:
        return _composite(rules, raw, failing, replaced, reason, ready, current)
    effective = dict(raw)
    for metric in rules.metrics:
        if rules.fallback and metric.name in replaced:
            effective[metric.name] = _fallback_value(metric, rules.fallback, ready, current)
    missing = tuple(m.name for m in rules.metrics if _external(m) and effective.get(m.name, 0.0) is None)
    active = [m for m in rules.metrics if _is_active(m, effective.get(m.name)) or m.name in replaced]
    # As KEDA: a ScaledObject with cpu and memory only is always active, it never scales to zero.
    only_resources = not any(_external(metric) for metric in rules.metrics)
    why = _active_reason(active[0], effective.get(active[0].name)) if active else ""
    return TriggerValues(
        rules.metrics, effective, bool(active) or (only_resources and not missing), why, missing, reason
    )


def _over_threshold(rules: Hpa, raw: Mapping[str, float | None], failed: Mapping[str, int]) -> tuple[str, ...]:
    """Return triggers that failed more often than `failureThreshold`; cpu and memory have no fallback."""
    if rules.fallback is None:
        return ()
    names = (m.name for m in rules.metrics if _external(m) and raw.get(m.name, 0.0) is None)
    return tuple(name for name in names if failed.get(name, 0) > rules.fallback.failure_threshold)


def _fallback_value(metric: Metric, fallback: Fallback, ready: int, current: int) -> float | None:
    """Return the metric value that makes the HPA propose the fallback's replicas."""
    count = float(fallback_count(fallback, current))
    if metric.kind == "Value":
        if ready == 0:
            return None  # Value multiplies by ready replicas: no value leads to any count
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
    rules: Hpa, raw: Mapping[str, float | None], failing: tuple[str, ...], replaced: tuple[str, ...], reason: str,
    ready: int, current: int,
) -> TriggerValues:  # fmt: skip
    """Combine all triggers by the formula, in which a trigger that failed beyond the threshold is nil."""
    whole = Metric(COMPOSITE, "prometheus", rules.formula_kind, rules.formula_target, rules.formula_activation)
    missing = tuple(name for name, value in raw.items() if value is None and name not in failing)
    value: float | None = None
    if replaced and rules.fallback:
        value = _fallback_value(whole, rules.fallback, ready, current)
    elif not missing:
        value = formula.compute(rules.formula, raw)
        if value is None and failing and rules.fallback:
            value = rules.fallback.replicas * rules.formula_target
        value = None if value is None else _thousandths(value)
    failed = missing or (() if value is not None else (COMPOSITE,))
    active = not failed and _is_active(whole, value)
    return TriggerValues((whole,), {COMPOSITE: value}, active, _active_reason(whole, value), failed, reason)
