"""Knative's pod autoscaler (autoscaler.go): replica count from the load of two windows. Followed by scale_to_zero.py.

desired  = ceil(average over the window / target), target = capacity of a replica × utilization
rates    = floor(ready / max-scale-down-rate) … ceil(ready × max-scale-up-rate) in one step
panic    if the panic window wants twice the ready replicas: the larger of both counts, and no scale-down until a whole
         stable window has passed below the threshold
delay    the highest count within `scale-down-delay`
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from pilotlight.targets.local.scaling.model import Kpa

MIN_TARGET: Final = 0.01
DELAY_TICK_S: Final = 2  # resolution of the scale-down delay's window, Knative's tick interval


@dataclass(frozen=True, slots=True)
class Load:
    """Averages of concurrency or requests per second over both windows."""

    stable: float
    panic: float


@dataclass(frozen=True, slots=True)
class KpaState:
    """State between decisions: panic mode, and (tick, count) within the scale-down delay, largest count first."""

    panic_since: float | None = None
    panic_replicas: int = 0
    delayed: tuple[tuple[int, int], ...] = ()

    def shifted_back(self, seconds: float) -> "KpaState":
        """Return the state with all times moved back, after a backward clock jump."""
        since = None if self.panic_since is None else self.panic_since - seconds
        delayed = tuple((index - round(seconds / DELAY_TICK_S), count) for index, count in self.delayed)
        return replace(self, panic_since=since, delayed=delayed)


@dataclass(frozen=True, slots=True)
class KpaRecommendation:
    """Recommended count. `excess` is Knative's excess burst capacity: spare capacity after a burst; < 0: too little."""

    desired: int
    excess: float
    rule: str
    reason: str
    state: KpaState


def capacity(rules: Kpa) -> float:
    """Return the target load of one replica: the annotation, at most containerConcurrency."""
    if rules.metric == "concurrency" and rules.container_concurrency:
        return min(rules.target, float(rules.container_concurrency))
    return rules.target


def target(rules: Kpa) -> float:
    return max(MIN_TARGET, capacity(rules) * rules.utilization)


def initial_state(ready: int, now: float) -> KpaState:
    """Return the state after a restart."""
    # As Knative: with several replicas start in panic mode, so that none is removed before a full window is known.
    return KpaState(now if ready > 1 else None, ready)


def recommend(rules: Kpa, load: Load, ready: int, reachable: bool, state: KpaState, now: float) -> KpaRecommendation:
    each = target(rules)
    stable_wanted, panic_wanted = math.ceil(load.stable / each), math.ceil(load.panic / each)
    stable = _limited(rules, stable_wanted, ready, reachable)
    panic = _limited(rules, panic_wanted, ready, reachable)
    # Compared with ready replicas, not desired ones: while they start, the burst still has to be served.
    over = panic_wanted / max(1, ready) >= rules.panic_threshold_percent / 100
    state = _update_panic(rules, state, over, now)
    excess = _excess(rules, load, ready)
    desired, rule = stable, "stable"
    reason = _reason(rules, load.stable, rules.window_s, each) + _limit_note(stable_wanted, stable, ready)
    if state.panic_since is not None:
        # No scale-down in panic mode: the largest count since panic began holds.
        largest = max(stable, panic, state.panic_replicas)
        if panic > stable:
            reason = _reason(rules, load.panic, rules.window_s * rules.panic_window_percent / 100, each)
        held = largest > max(stable, panic)
        reason += f", {'no step down in panic' if held else 'panic'}"
        state = replace(state, panic_replicas=largest)
        desired, rule = largest, "panic"
    if reachable and rules.scale_down_delay_s > 0:
        state = replace(state, delayed=_update_delay_window(rules, state, desired, now))
        if state.delayed[0][1] != desired:
            reason += f", {desired} after the scale-down delay of {rules.scale_down_delay_s:g} s"
            desired, rule = state.delayed[0][1], "delay"
    return KpaRecommendation(desired, excess, rule, reason, state)


def _limited(rules: Kpa, wanted: int, ready: int, reachable: bool) -> int:
    present = max(1, ready)  # scaling from zero counts as one, so the up rate permits a start
    most = math.ceil(rules.max_up_rate * present)  # rounded up: permits growth by at least one replica
    least = math.floor(present / rules.max_down_rate) if reachable else 0
    limited = min(max(wanted, least), most)
    # activation-scale applies only when scaling to a non-zero count, so that it never prevents scale to zero.
    return max(limited, rules.activation_scale) if wanted > 0 and rules.activation_scale > 1 else limited


def _limit_note(wanted: int, limited: int, ready: int) -> str:
    """Explain a count that differs from load divided by target."""
    if limited > max(wanted, 1):
        return f", at most from {ready} to {limited} in one step" if wanted < limited <= ready else ", activation scale"
    return f", at most from {ready} to {limited} in one step" if limited < wanted else ""


def _update_panic(rules: Kpa, state: KpaState, over: bool, now: float) -> KpaState:
    if over:
        return replace(state, panic_since=now)  # renewed, so panic lasts a stable window after the last burst
    if state.panic_since is not None and state.panic_since + rules.window_s < now:
        return replace(state, panic_since=None, panic_replicas=0)
    return state


def _update_delay_window(rules: Kpa, state: KpaState, desired: int, now: float) -> tuple[tuple[int, int], ...]:
    """Return the delay window with `desired`, a monotonic queue: the first entry is the maximum."""
    index, size = math.floor(now / DELAY_TICK_S), math.ceil(rules.scale_down_delay_s / DELAY_TICK_S)
    window = [(at, count) for at, count in state.delayed if count > desired and index - at < size]
    if window and window[-1][0] == index:
        return tuple(window)
    return (*window, (index, desired))


def _excess(rules: Kpa, load: Load, ready: int) -> float:
    if rules.burst_capacity <= 0:  # 0: never through the activator at load; -1: always
        return rules.burst_capacity
    return float(math.floor(ready * capacity(rules) - rules.burst_capacity - load.panic))


def _reason(rules: Kpa, value: float, window_s: float, each: float) -> str:
    unit = "requests/s" if rules.metric == "rps" else "concurrent"
    return f"{value:.3g} {unit} over {window_s:g} s / {each:g} each"
