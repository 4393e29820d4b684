"""Knative's scaler (scaler.go): bounds, initial scale, and removal of the last replica. Follows kpa.py.

    activating  fewer replicas are ready than required; nothing is removed until the progress deadline
    active      at least for a stable window before it may become inactive; until then one replica stays
    inactive    the last replica ends once requests have been proxied for the grace period and the retention is over

"Proxied" is Knative's activator in the request path: while excess burst capacity is negative or nothing is desired.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from pilotlight.targets.local.scaling.model import Kpa, Observed

ACTIVATION_BUFFER_S: Final = 30.0
State = Literal["activating", "active", "inactive"]


@dataclass(frozen=True, slots=True)
class Phase:
    state: State
    since: float
    initialized: bool = False  # the initial scale has been reached
    held_since: float | None = None  # since when the activator is in the request path

    def shifted_back(self, seconds: float) -> "Phase":
        """Return the phase with all times moved back, after a backward clock jump."""
        held = None if self.held_since is None else self.held_since - seconds
        return replace(self, since=self.since - seconds, held_since=held)


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """Bounded count. `desired` None: hold the present replicas; `note` is the reason, `rule` the metric label."""

    desired: int | None
    want: int  # count that the next phase depends on; -1: unknown
    note: str = ""
    rule: str = ""


def initial_phase(rules: Kpa, observed: Observed, now: float) -> Phase:
    """Return the phase of a revision without state, such as after a restart."""
    enough = observed.ready >= max(1, _min_ready(rules, observed, observed.was_ready))
    if enough:
        return Phase("active", now, observed.was_ready, now)
    asleep = observed.was_ready and observed.replicas == 0
    return Phase("inactive" if asleep else "activating", now, observed.was_ready, now)


def scale(rules: Kpa, wanted: int, observed: Observed, phase: Phase, now: float) -> ScaleResult:
    least = rules.min_scale if observed.reachable else 0
    note, rule = "", ""
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
            return ScaleResult(None, 0, f"nothing asked for {rules.window_s:g} s, about to go", "grace")
        return ScaleResult(1, 1, f"active for {passed:.0f} s of at least {rules.window_s:g} s", "window")
    return _last_replica(rules, observed, phase, now)


def _last_replica(rules: Kpa, observed: Observed, phase: Phase, now: float) -> ScaleResult:
    inactive = now - phase.since
    retention = rules.retention_s if observed.reachable else 0.0
    if inactive >= max(rules.grace_s, retention):
        return ScaleResult(0, 0)
    if inactive < retention:
        return ScaleResult(None, 0, f"retention of {retention:g} s", "retention")
    if phase.held_since is not None and now - phase.held_since >= rules.grace_s:
        return ScaleResult(0, 0)
    return ScaleResult(None, 0, f"grace of {rules.grace_s:g} s", "grace")


def next_phase(rules: Kpa, want: int, excess: float, observed: Observed, phase: Phase, now: float) -> Phase:
    least = _min_ready(rules, observed, phase.initialized)
    initialized = phase.initialized or observed.ready >= least
    state = _next_state(want, least, observed.ready, phase.state)
    held = None if want > 0 and excess >= 0 else phase.held_since if phase.held_since is not None else now
    since = phase.since if state == phase.state else now
    return Phase(state, since, initialized, held)


def _min_ready(rules: Kpa, observed: Observed, initialized: bool) -> int:
    """Return the ready replicas required for the revision to be active."""
    least = rules.min_scale if observed.reachable else 0
    return max(least, 1 if initialized else rules.initial_scale)


def _next_state(want: int, least: int, ready: int, before: State) -> State:
    if want == 0 or least == 0:
        return "inactive"
    if want < 0 and before == "inactive":
        return "inactive"  # an unknown count must not activate
    return "active" if ready >= least else "activating"
