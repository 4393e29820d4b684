"""Entry; bounds.

Entry point of scaling decisions. Pure; the caller stores `Decision.memory` and passes it back.

Kpa    load of both windows → kpa.recommend → scale_to_zero.scale
Hpa    keda.decide, which calls hpa.decide above zero
Fixed  its replica count

Replica bounds set by `platformctl scale`, applied over those of the manifests.
"""

from dataclasses import dataclass, replace
from typing import Any

from pilotlight.targets.local.scaling import keda, kpa, types
from pilotlight.targets.local.scaling.types import Decision, Fixed, Hpa, Kpa, Observed, Scaling


@dataclass(frozen=True, slots=True)
class KpaMemory:
    at: float
    state: kpa.KpaState
    phase: kpa.Phase


def decide(scaling: Scaling, observed: Observed, memory: Any, now: float) -> Decision:
    """Decide the replica count; `memory` of another autoscaler, or None, starts from initial state."""
    if isinstance(scaling, Kpa):
        return _kpa(scaling, observed, memory if isinstance(memory, KpaMemory) else None, now)
    if isinstance(scaling, Hpa):
        return keda.decide(scaling, observed, memory if isinstance(memory, keda.KedaState) else None, now)
    return Decision(scaling.replicas, f"{scaling.replicas}: fixed", rule="fixed")


def _kpa(rules: Kpa, observed: Observed, memory: KpaMemory | None, now: float) -> Decision:
    memory = _restore(rules, observed, memory, now)
    phase = memory.phase
    if _is_idle(rules, observed, phase):
        memory = KpaMemory(now, memory.state, phase)
        return Decision(0, f"0: nothing asked for {rules.window_s:g} s", memory, "zero")
    load = _load(rules, observed, memory, now)
    recommendation = kpa.recommend(rules, load, observed.ready, observed.reachable, memory.state, now)
    busy = observed.waiting + observed.in_flight
    # A request that runs longer than the window has left the averages; it still needs its replica.
    result = kpa.scale(rules, max(recommendation.desired, 1) if busy else recommendation.desired, observed, phase, now)
    phase = kpa.next_phase(rules, result.want, recommendation.excess, observed, phase, now)
    after = KpaMemory(now, recommendation.state, phase)
    return _decision(rules, observed, recommendation, result, after)


def _restore(rules: Kpa, observed: Observed, memory: KpaMemory | None, now: float) -> KpaMemory:
    """Return the state to decide from; after a backward clock jump its times are shifted, so no time is added."""
    if memory is None:
        state = kpa.initial_state(observed.ready, now)
        return KpaMemory(now, state, kpa.initial_phase(rules, observed, now))
    back = memory.at - now
    if back <= 0:
        return memory
    return KpaMemory(now, memory.state.shifted_back(back), memory.phase.shifted_back(back))


def _is_idle(rules: Kpa, observed: Observed, phase: kpa.Phase) -> bool:
    """Fast path of the common case: many services that are idle at zero."""
    return (
        observed.replicas == 0
        and not observed.samples
        and not (observed.waiting or observed.in_flight)
        and phase.state == "inactive"
        and (rules.min_scale == 0 or not observed.reachable)
    )


def _load(rules: Kpa, observed: Observed, memory: KpaMemory, now: float) -> kpa.Load:
    seen = types.buckets(observed, rules.metric, rules.window_s, now)
    began = memory.phase.since if memory.phase.state == "active" else None
    weighted = rules.algorithm != "linear"
    panic_s = rules.window_s * rules.panic_window_percent / 100
    return kpa.Load(
        types.average(seen, began, rules.window_s, now, weighted),
        types.average(seen, began, panic_s, now, weighted),
    )


def _decision(
    rules: Kpa,
    observed: Observed,
    recommendation: kpa.KpaRecommendation,
    result: kpa.ScaleResult,
    memory: KpaMemory,
) -> Decision:
    """Build the decision and its reason: `4: 37.2 concurrent over 60 s / 7 each, burst capacity -211`."""
    if result.desired is None:
        held = _held_count(rules, observed)
        start = f"held at {held}" if held else "0"
        return Decision(held, f"{start}: {result.note}", memory, result.rule)
    if result.desired == 0:
        note = result.note or f"nothing asked for {rules.window_s:g} s"
        return Decision(0, f"0: {note}", memory, result.rule or "zero")
    if result.rule == "window":
        return Decision(result.desired, f"{result.desired}: {result.note}", memory, result.rule)
    burst = f", burst capacity {recommendation.excess:g}" if rules.burst_capacity > 0 else ""
    note = f", {result.note}" if result.note else ""
    reason = f"{result.desired}: {recommendation.reason}{note}{burst}"
    return Decision(result.desired, reason, memory, result.rule or recommendation.rule)


def _held_count(rules: Kpa, observed: Observed) -> int:
    """Return the count to hold: the present one, or the initial scale of a revision that has never been ready."""
    if observed.was_ready or not observed.reachable:
        return observed.replicas
    return max(observed.replicas, rules.initial_scale, rules.min_scale)


def with_bounds(scaling: Scaling, min_replicas: int | None, max_replicas: int | None) -> Scaling:
    """Return the rules with new bounds; None leaves a bound. A given bound wins over the other if they conflict."""
    if min_replicas is None and max_replicas is None:
        return scaling
    if isinstance(scaling, Fixed):
        count = scaling.replicas if min_replicas is None else max(scaling.replicas, min_replicas)
        return Fixed(count if max_replicas is None else min(count, max_replicas))
    if isinstance(scaling, Kpa):
        return _bounds_kpa(scaling, min_replicas, max_replicas)
    low, high = _merge_bounds(scaling.min_replicas, scaling.max_replicas, min_replicas, max_replicas)
    return _hpa(scaling, low, max(high, 1))


def _merge_bounds(low: int, high: int, new_low: int | None, new_high: int | None) -> tuple[int, int]:
    if new_low is not None:
        low, high = new_low, max(high, new_low)
    if new_high is not None:
        low, high = min(low, new_high), new_high
    return low, high


def _bounds_kpa(rules: Kpa, min_replicas: int | None, max_replicas: int | None) -> Kpa:
    """Clamp Knative's bounds and `activation_scale`. A max_scale of 0 means no limit, so a maximum of 0 is ignored."""
    unlimited = rules.max_scale == 0 and max_replicas is None
    low, high = _merge_bounds(rules.min_scale, rules.max_scale or 2**31 - 1, min_replicas, max_replicas or None)
    activation = min(max(rules.activation_scale, low, 1), high)
    return replace(rules, min_scale=low, max_scale=0 if unlimited else high, activation_scale=activation)


def _hpa(rules: Hpa, low: int, high: int) -> Hpa:
    """Clamp an HPA's bounds: only KEDA allows a minimum of 0; idleReplicaCount must stay below the minimum."""
    low = low if rules.keda else max(1, low)
    idle = rules.idle_replicas if rules.idle_replicas is not None and rules.idle_replicas < low else None
    return replace(rules, min_replicas=low, max_replicas=max(high, low), idle_replicas=idle)
