"""KEDA's scale executor around the HPA: trigger values, activation, scale to zero, fallback and pauses.

Without KEDA only the HPA decides. A metric absent from `observed.metrics` is not polled yet: neither active nor failed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pilotlight.targets.local.scaling import hpa, keda_formula, types
from pilotlight.targets.local.scaling.hpa import History
from pilotlight.targets.local.scaling.types import Decision, Fallback, Hpa, Metric, Observed, Rule, Scaling

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


@dataclass(frozen=True, slots=True)
class KedaState:
    """State between decisions. `wanted` is the last decision, whether or not so many replicas run yet."""

    wanted: int
    history: History
    last_active: float | None = None
    failures: Mapping[str, int] | None = None
    polled_at: float | None = None


def decide(rules: Hpa, observed: Observed, state: KedaState | None, now: float) -> Decision:
    """Decide the replica count.

    0 → 1      as soon as a trigger is above its activation threshold
    N → 0      when none has been active for the cooldown; a new ScaledObject first gets its initial cooldown
    failing    after `failureThreshold` failed polls the trigger reports what the fallback's replicas need
    """
    if state is None:
        state = _initial_state(rules, observed, now)
    if rules.paused_replicas is not None or rules.paused:
        count = state.wanted if rules.paused_replicas is None else rules.paused_replicas
        state = replace(state, wanted=count, history=hpa.initial_history(count, now))
        return Decision(count, f"{count}: paused", state, "paused")
    busy = observed.waiting or observed.in_flight or observed.samples or observed.metrics
    if rules.keda and state.wanted == 0 and not busy:  # fast path of the common case: idle at zero
        return Decision(0, "0: no trigger is active", state, "zero")
    triggered, state = _evaluate_triggers(rules, observed, state, now)
    if rules.keda and (step := _scale_from_or_to_zero(rules, observed, triggered, state, now)) is not None:
        return step
    return _above_zero(rules, observed, triggered, state, now)


def _initial_state(rules: Hpa, observed: Observed, now: float) -> KedaState:
    """Return the state after a restart or for a new Deployment, which begins with one replica."""
    if observed.replicas or observed.was_ready:
        current = observed.replicas
        # Running replicas may have been active just before the restart: the cooldown starts now.
        return KedaState(current, hpa.initial_history(current, now), now if observed.replicas else None)
    current = max(1, rules.min_replicas)
    return KedaState(current, hpa.initial_history(current, now))


def _evaluate_triggers(rules: Hpa, observed: Observed, state: KedaState, now: float) -> tuple[TriggerValues, KedaState]:
    """Evaluate the triggers; failures count once per polling interval, though decisions are made every second."""
    due = state.polled_at is None or now - state.polled_at >= rules.polling_s
    raw = values(rules, observed, now)
    failures = before = state.failures or {}  # consecutive polls by trigger
    if due:
        failures = {name: before.get(name, 0) + 1 for name, value in raw.items() if value is None}
    triggered = evaluate(rules, raw, failures, observed.ready, state.wanted)
    return triggered, replace(state, failures=failures, polled_at=now if due else state.polled_at)


def _scale_from_or_to_zero(
    rules: Hpa, observed: Observed, triggered: TriggerValues, state: KedaState, now: float
) -> Decision | None:
    """Decide KEDA's own steps: from zero or idle, to zero or idle. None: the HPA decides."""
    current = state.wanted
    if triggered.active or rules.force_activation:
        return _activate(rules, triggered, state, now)
    if triggered.failed and (rules.fallback is None or rules.fallback.replicas):
        failed = " and ".join(triggered.failed)
        return None if current else _decision(0, f"0: {failed} cannot be read", state, "failed")
    floor = rules.idle_replicas if rules.idle_replicas is not None else 0 if rules.min_replicas == 0 else None
    if floor is not None and current > floor:
        passed, period, _ = _idle_for(rules, observed, state, now)
        if rules.paused_in or passed <= period:
            return None
        return _decision(floor, f"{floor}: no trigger active for {period:g} s", state, "zero" if floor == 0 else "idle")
    if floor is None and current < rules.min_replicas:
        return _decision(rules.min_replicas, f"{rules.min_replicas}: minimum", state, "minimum")
    return _decision(current, f"{current}: no trigger is active", state, "zero") if current in (0, floor) else None


def _activate(rules: Hpa, triggered: TriggerValues, state: KedaState, now: float) -> Decision | None:
    """Scale from zero or idle to the minimum; None: already above."""
    current = state.wanted
    idle = rules.idle_replicas is not None and current < rules.min_replicas
    if current and not idle:
        return None
    if rules.paused_out:
        return _decision(current, f"{current}: scaling out is paused", state, "paused")
    count = max(1, rules.min_replicas)
    why = "activation is forced" if rules.force_activation and not triggered.active else triggered.why
    state = replace(state, last_active=now, history=hpa.initial_history(count, now))
    return _decision(count, f"{count}: {why}", state, "activation")


def _idle_for(rules: Hpa, observed: Observed, state: KedaState, now: float) -> tuple[float, float, str]:
    """Return the idle time, the cooldown that applies, and its name."""
    if state.last_active is not None:
        return now - state.last_active, rules.cooldown_s, "cooldown"
    return now - observed.created_at, rules.initial_cooldown_s, "initial cooldown"


def _decision(count: int, reason: str, state: KedaState, rule: Rule) -> Decision:
    return Decision(count, reason, replace(state, wanted=count), rule)


def _above_zero(rules: Hpa, observed: Observed, triggered: TriggerValues, state: KedaState, now: float) -> Decision:
    up = replace(rules.up, select="Disabled") if rules.paused_out else rules.up
    down = replace(rules.down, select="Disabled") if rules.paused_in else rules.down
    bounded = replace(rules, min_replicas=max(1, rules.min_replicas), up=up, down=down, metrics=triggered.metrics)
    result = hpa.decide(bounded, triggered.values, observed, state.wanted, state.history, now)
    active = triggered.active or rules.force_activation
    last = now if active and not triggered.failed else state.last_active  # as KEDA: unchanged while a source fails
    before, state = state, replace(state, wanted=result.desired, history=result.history, last_active=last)
    if triggered.fallback:
        reason = f"{result.desired} (fallback): {triggered.fallback}"
        return Decision(result.desired, reason, state, "fallback")
    cooling = rules.keda and not active and result.rule in ("metrics", "bound") and rules.min_replicas == 0
    if cooling and result.desired == before.wanted == 1:
        passed, period, word = _idle_for(rules, observed, before, now)
        reason = f"held at 1: {word} of {period:g} s, {period - passed:.0f} s left"
        return Decision(1, reason, state, "cooldown")
    return Decision(result.desired, result.reason, state, result.rule)


def scheduled(scaling: Scaling) -> list[Metric]:
    """Return the triggers by which the count changes without requests."""
    return [metric for metric in scaling.metrics if metric.source == "cron"] if isinstance(scaling, Hpa) else []


def scheduled_replicas(metric: Metric, now: datetime) -> float:
    """Return the value of a cron trigger. KEDA's is 1 outside of the schedule, where it is not active."""
    assert metric.schedule is not None
    return float(metric.schedule.replicas) if metric.schedule.active(now)[0] else 0.0


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
            seen = types.buckets(observed, "concurrency", rules.polling_s, now)
            value: float | None = types.average(seen, None, rules.polling_s, now, weighted=False)
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
    is_active = bool(active) or (only_resources and not missing)
    return TriggerValues(rules.metrics, effective, is_active, why, missing, reason)


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
    return f"{metric.name} {value:.4g} is above its activation threshold {metric.activation:g}"


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
        value = keda_formula.compute(rules.formula, raw)
        if value is None and failing and rules.fallback:
            value = rules.fallback.replicas * rules.formula_target
        value = None if value is None else _thousandths(value)
    failed = missing or (() if value is not None else (COMPOSITE,))
    active = not failed and _is_active(whole, value)
    return TriggerValues((whole,), {COMPOSITE: value}, active, _active_reason(whole, value), failed, reason)
