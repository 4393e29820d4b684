"""Scaling decisions: how many replicas, within the bounds of `platformctl scale`, and which of them go. Pure.

A Kpa goes through kpa.measure_load, kpa.recommend and kpa.scale, an Hpa through keda.decide, which calls hpa.decide
above zero. The caller stores `Decision.state` and passes it back.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from pilotlight.targets.local.scaling import keda, kpa
from pilotlight.targets.local.scaling.types import Decision, Fixed, Hpa, Kpa, Observed, Scaling

# Replicas that do not serve are stopped first.
_STOP_ORDER: Final = {"waiting": 0, "pending": 0, "unready": 1, "starting": 2, "waking": 2, "ready": 3}


class Removable(Protocol):
    """A replica, of the platform or of a simulation; `started_at` orders by age."""

    @property
    def state(self) -> str: ...
    @property
    def started_at(self) -> Any: ...


R = TypeVar("R", bound=Removable)


@dataclass(frozen=True, slots=True)
class KpaDecisionState:
    autoscaler: kpa.KpaState
    phase: kpa.Phase


def decide(scaling: Scaling, observed: Observed, state: Any, now: float) -> Decision:
    """Decide the replica count; `state` of another autoscaler, or None, starts from initial state."""
    if isinstance(scaling, Kpa):
        return _kpa(scaling, observed, state if isinstance(state, KpaDecisionState) else None, now)
    if isinstance(scaling, Hpa):
        return keda.decide(scaling, observed, state if isinstance(state, keda.KedaState) else None, now)
    return Decision(scaling.replicas, f"{scaling.replicas}: fixed", rule="fixed")


def _kpa(rules: Kpa, observed: Observed, state: KpaDecisionState | None, now: float) -> Decision:
    if state is None:
        state = KpaDecisionState(kpa.initial_state(observed.ready, now), kpa.initial_phase(rules, observed, now))
    phase = state.phase
    if _is_idle(rules, observed, phase):
        return Decision(0, f"0: no requests for {rules.window_s:g} s", state, "zero")
    load = kpa.measure_load(rules, observed, phase, now)
    recommendation = kpa.recommend(rules, load, observed.ready, observed.reachable, state.autoscaler, now)
    busy = observed.waiting + observed.in_flight
    # A request that runs longer than the window has left the averages; it still needs its replica.
    result = kpa.scale(rules, max(recommendation.desired, 1) if busy else recommendation.desired, observed, phase, now)
    phase = kpa.next_phase(rules, result.want, recommendation.excess, observed, phase, now)
    return _decision(rules, observed, recommendation, result, KpaDecisionState(recommendation.state, phase))


def _is_idle(rules: Kpa, observed: Observed, phase: kpa.Phase) -> bool:
    """Fast path of the common case: many services that are idle at zero."""
    return (
        observed.replicas == 0
        and not observed.samples
        and not (observed.waiting or observed.in_flight)
        and phase.state == "inactive"
        and (rules.min_scale == 0 or not observed.reachable)
    )


def _decision(
    rules: Kpa,
    observed: Observed,
    recommendation: kpa.KpaRecommendation,
    result: kpa.ScaleResult,
    state: KpaDecisionState,
) -> Decision:
    """Build the decision and its reason: `4: 37.2 concurrent requests over 60 s, target 10 per replica`."""
    if result.desired is None:
        held = observed.replicas
        if not observed.was_ready and observed.reachable:  # never ready yet: at least its initial scale
            held = max(held, rules.initial_scale, rules.min_scale)
        start = f"held at {held}" if held else "0"
        return Decision(held, f"{start}: {result.note}", state, result.rule)
    if result.desired == 0:
        note = result.note or f"no requests for {rules.window_s:g} s"
        return Decision(0, f"0: {note}", state, result.rule or "zero")
    if result.rule == "window":
        return Decision(result.desired, f"{result.desired}: {result.note}", state, result.rule)
    note = f", {result.note}" if result.note else ""
    reason = f"{result.desired}: {recommendation.reason}{note}"
    return Decision(result.desired, reason, state, result.rule or recommendation.rule)


def with_bounds(scaling: Scaling, min_replicas: int | None, max_replicas: int | None) -> Scaling:
    """Return the rules with new bounds; None leaves a bound. A given bound wins over the other if they conflict."""
    if min_replicas is None and max_replicas is None:
        return scaling
    if isinstance(scaling, Fixed):
        count = scaling.replicas if min_replicas is None else max(scaling.replicas, min_replicas)
        return Fixed(count if max_replicas is None else min(count, max_replicas))
    if isinstance(scaling, Kpa):
        # A max_scale of 0 means no limit, so a maximum of 0 is ignored.
        unlimited = scaling.max_scale == 0 and max_replicas is None
        most = scaling.max_scale or 2**31 - 1
        low, high = _merge_bounds(scaling.min_scale, most, min_replicas, max_replicas or None)
        activation = min(max(scaling.activation_scale, low, 1), high)
        return replace(scaling, min_scale=low, max_scale=0 if unlimited else high, activation_scale=activation)
    low, high = _merge_bounds(scaling.min_replicas, scaling.max_replicas, min_replicas, max_replicas)
    low = low if scaling.keda else max(1, low)  # only KEDA allows a minimum of 0
    # idleReplicaCount must stay below the minimum.
    idle = scaling.idle_replicas if scaling.idle_replicas is not None and scaling.idle_replicas < low else None
    return replace(scaling, min_replicas=low, max_replicas=max(high, 1, low), idle_replicas=idle)


def _merge_bounds(low: int, high: int, new_low: int | None, new_high: int | None) -> tuple[int, int]:
    if new_low is not None:
        low, high = new_low, max(high, new_low)
    if new_high is not None:
        low, high = min(low, new_high), new_high
    return low, high


def select_for_removal(replicas: Iterable[R], surplus: int) -> list[R]:
    """Return `surplus` replicas to remove: those that do not serve first, then the youngest."""
    by_age = sorted(replicas, key=lambda replica: replica.started_at, reverse=True)
    ordered = sorted(by_age, key=lambda replica: _STOP_ORDER.get(replica.state, 0))
    return ordered[: max(0, surplus)]
