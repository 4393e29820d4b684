"""Knative's pod autoscaler (autoscaler.go): count from the load of two windows.

Then its scaler (scaler.go): bounds, initial scale, and removal of the last replica. Pure; called by decision.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from pilotlight.targets.local.scaling import types
from pilotlight.targets.local.scaling.types import Kpa, Observed, Rule

MIN_TARGET: Final = 0.01
DELAY_TICK_S: Final = 2  # resolution of the scale-down delay's window, Knative's tick interval
ACTIVATION_BUFFER_S: Final = 30.0
State = Literal["activating", "active", "inactive"]


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


@dataclass(frozen=True, slots=True)
class KpaRecommendation:
    """Recommended count. `excess` is Knative's excess burst capacity: spare capacity after a burst; < 0: too little."""

    desired: int
    excess: float
    rule: Rule
    reason: str
    state: KpaState


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a revision.

    activating  fewer replicas are ready than required; nothing is removed until the progress deadline
    active      at least for a stable window before it may become inactive; until then one replica stays
    inactive    the last replica ends once requests have been proxied for the grace period and the retention is over

    "Proxied" is Knative's activator in the request path: while excess burst capacity is negative or nothing is desired.
    """

    state: State
    since: float
    initialized: bool = False  # the initial scale has been reached
    held_since: float | None = None  # since when the activator is in the request path


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """Bounded count. `desired` None: hold the present replicas; `note` is the reason, `rule` the metric label."""

    desired: int | None
    want: int  # count that the next phase depends on; -1: unknown
    note: str = ""
    rule: Rule | Literal[""] = ""


def capacity(rules: Kpa) -> float:
    """Return the target load of one replica: the annotation, at most containerConcurrency."""
    if rules.metric == "concurrency" and rules.container_concurrency:
        return min(rules.target, float(rules.container_concurrency))
    return rules.target


def target(rules: Kpa) -> float:
    return max(MIN_TARGET, capacity(rules) * rules.utilization)


def initial_state(ready: int, now: float) -> KpaState:
    # As Knative: with several replicas start in panic mode, so that none is removed before a full window is known.
    return KpaState(now if ready > 1 else None, ready)


def measure_load(rules: Kpa, observed: Observed, phase: Phase, now: float) -> Load:
    """Average the samples over the stable window and the panic window."""
    load_by_second = types.buckets(observed, rules.metric, rules.window_s, now)
    began = phase.since if phase.state == "active" else None
    weighted = rules.algorithm != "linear"
    windows = rules.window_s, panic_window_s(rules)
    return Load(*(types.average(load_by_second, began, window, now, weighted) for window in windows))


def panic_window_s(rules: Kpa) -> float:
    return rules.window_s * rules.panic_window_percent / 100


def recommend(rules: Kpa, load: Load, ready: int, reachable: bool, state: KpaState, now: float) -> KpaRecommendation:
    """Return the count by load.

    desired  ceil(average over the window / target), target = capacity of a replica × utilization
    rates    floor(ready / max-scale-down-rate) … ceil(ready × max-scale-up-rate) in one step
    panic    if the panic window wants twice the ready replicas: the larger of both counts, and no scale-down until a
             whole stable window has passed below the threshold
    delay    the highest count within `scale-down-delay`
    """
    each = target(rules)
    stable_wanted, panic_wanted = math.ceil(load.stable / each), math.ceil(load.panic / each)
    stable = _limited(rules, stable_wanted, ready, reachable)
    panic = _limited(rules, panic_wanted, ready, reachable)
    # Compared with ready replicas, not desired ones: while they start, the burst still has to be served.
    over = panic_wanted / max(1, ready) >= rules.panic_threshold_percent / 100
    if over:
        state = replace(state, panic_since=now)  # renewed, so panic lasts a stable window after the last burst
    elif state.panic_since is not None and state.panic_since + rules.window_s < now:
        state = replace(state, panic_since=None, panic_replicas=0)
    excess = rules.burst_capacity  # 0: never through the activator at load; -1: always
    if excess > 0:
        excess = float(math.floor(ready * capacity(rules) - excess - load.panic))
    desired = stable
    rule: Rule = "stable"
    reason = _reason(rules, load.stable, rules.window_s, each) + _limit_note(stable_wanted, stable, ready)
    if state.panic_since is not None:
        # No scale-down in panic mode: the largest count since panic began holds.
        largest = max(stable, panic, state.panic_replicas)
        if panic > stable:
            reason = _reason(rules, load.panic, panic_window_s(rules), each)
        held = largest > max(stable, panic)
        reason += f", {'no scale-down in panic mode' if held else 'panic mode'}"
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
        return f", not below {limited} in one step" if wanted < limited <= ready else ", activation scale"
    return f", not above {limited} in one step" if limited < wanted else ""


def _update_delay_window(rules: Kpa, state: KpaState, desired: int, now: float) -> tuple[tuple[int, int], ...]:
    """Return the delay window with `desired`, a monotonic queue: the first entry is the maximum."""
    index, size = math.floor(now / DELAY_TICK_S), math.ceil(rules.scale_down_delay_s / DELAY_TICK_S)
    window = [(at, count) for at, count in state.delayed if count > desired and index - at < size]
    if window and window[-1][0] == index:  # a larger count of the same tick already dominates
        return tuple(window)
    return (*window, (index, desired))


def _reason(rules: Kpa, value: float, window_s: float, each: float) -> str:
    unit = "requests/s" if rules.metric == "rps" else "concurrent requests"
    amount = "under 0.01" if 0 < value < 0.01 else f"{value:.3g}"
    return f"{amount} {unit} over {window_s:g} s, target {each:.3g} per replica"


def initial_phase(rules: Kpa, observed: Observed, now: float) -> Phase:
    """Return the phase of a revision without state, such as after a restart."""
    if observed.ready >= max(1, _min_ready(rules, observed, observed.was_ready)):
        return Phase("active", now, observed.was_ready, now)
    asleep = observed.was_ready and observed.replicas == 0
    return Phase("inactive" if asleep else "activating", now, observed.was_ready, now)


def scale(rules: Kpa, wanted: int, observed: Observed, phase: Phase, now: float) -> ScaleResult:
    """Bound the recommended count by min, max and initial scale; a count of 0 is delayed by the phase."""
    least = rules.min_scale if observed.reachable else 0
    note = ""
    rule: Rule | Literal[""] = ""
    # initial-scale acts as a minimum until it has been reached once.
    if rules.initial_scale > 1 and not phase.initialized and observed.reachable and rules.initial_scale > least:
        least, note, rule = rules.initial_scale, f"initial scale {rules.initial_scale}", "initial"
    desired = least if wanted < least else min(wanted, rules.max_scale) if rules.max_scale else wanted
    if desired > wanted:
        note, rule = note or f"minimum {least}", rule or "minimum"
    elif desired < wanted:
        note, rule = f"maximum {rules.max_scale}", "maximum"
    else:
        note, rule = "", ""
    return ScaleResult(desired, desired, note, rule) if desired else _scale_to_zero(rules, observed, phase, now)


def _scale_to_zero(rules: Kpa, observed: Observed, phase: Phase, now: float) -> ScaleResult:
    passed = now - phase.since
    if phase.state == "activating":
        limit = rules.progress_s + ACTIVATION_BUFFER_S
        if passed > limit:
            return ScaleResult(0, 0, f"not ready within {limit:g} s", "deadline")
        return ScaleResult(None, -1, "starting", "activation")
    if phase.state == "active":
        # Hold for one more decision before going inactive: Knative first reprograms the network to the activator.
        if passed >= rules.window_s:
            return ScaleResult(None, 0, f"no requests for {rules.window_s:g} s, about to scale to zero", "grace")
        return ScaleResult(1, 1, f"active for {passed:.0f} s, the stable window is {rules.window_s:g} s", "window")
    return _last_replica(rules, observed, phase, now)


def _last_replica(rules: Kpa, observed: Observed, phase: Phase, now: float) -> ScaleResult:
    inactive = now - phase.since
    retention = rules.retention_s if observed.reachable else 0.0
    if inactive >= max(rules.grace_s, retention):
        return ScaleResult(0, 0)
    if inactive < retention:
        return ScaleResult(None, 0, f"retention period of {retention:g} s", "retention")
    if phase.held_since is not None and now - phase.held_since >= rules.grace_s:
        return ScaleResult(0, 0)
    return ScaleResult(None, 0, f"grace period of {rules.grace_s:g} s", "grace")


def next_phase(rules: Kpa, want: int, excess: float, observed: Observed, phase: Phase, now: float) -> Phase:
    """Return the phase after a decision; `want` is ScaleResult.want, `excess` the excess burst capacity."""
    least = _min_ready(rules, observed, phase.initialized)
    initialized = phase.initialized or observed.ready >= least
    state: State = "active" if observed.ready >= least else "activating"
    if want == 0 or least == 0 or (want < 0 and phase.state == "inactive"):  # an unknown count must not activate
        state = "inactive"
    # Proxied from the first moment with nothing desired or too little burst capacity, until both end.
    held = None if want > 0 and excess >= 0 else phase.held_since if phase.held_since is not None else now
    since = phase.since if state == phase.state else now
    return Phase(state, since, initialized, held)


def _min_ready(rules: Kpa, observed: Observed, initialized: bool) -> int:
    """Return the ready replicas required for the revision to be active."""
    least = rules.min_scale if observed.reachable else 0
    return max(least, 1 if initialized else rules.initial_scale)
