"""Knative's last word on a count: bounds, the initial scale, and when the last replica may go. Follows kpa.py.

    activating  fewer replicas are ready than must be; nothing is taken away until the start's deadline
    active      for at least a stable window before it may become inactive; until then one replica stays
    inactive    the last replica goes once requests have been held here for the grace period and the retention is over

"Held here" is Knative's activator in the path: whenever the excess burst capacity is negative, or nothing is wanted.
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
    initialized: bool = False  # the initial scale was once reached
    held_since: float | None = None  # since when requests have come by way of whoever can hold them

    def earlier(self, seconds: float) -> "Phase":
        """Times moved back with a clock that jumped."""
        held = None if self.held_since is None else self.held_since - seconds
        return replace(self, since=self.since - seconds, held_since=held)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`desired` is None where what runs shall stay as it is; `note` says why, `rule` is its word for metrics."""

    desired: int | None
    want: int  # what the revision is judged by afterwards; -1: unknown
    note: str = ""
    rule: str = ""


def first_phase(rules: Kpa, observed: Observed, now: float) -> Phase:
    """Where a revision stands when nothing is remembered of it."""
    enough = observed.ready >= max(1, _least(rules, observed, observed.was_ready))
    if enough:
        return Phase("active", now, observed.was_ready, now)
    asleep = observed.was_ready and observed.replicas == 0
    return Phase("inactive" if asleep else "activating", now, observed.was_ready, now)


def verdict(rules: Kpa, wanted: int, observed: Observed, phase: Phase, now: float) -> Verdict:
    least = rules.min_scale if observed.reachable else 0
    note, rule = "", ""
    if rules.initial_scale > 1 and not phase.initialized and observed.reachable and rules.initial_scale > least:
        least, note, rule = rules.initial_scale, f"initial scale {rules.initial_scale}", "initial"
    desired = _bounded(wanted, least, rules.max_scale)
    if desired > wanted:
        note, rule = note or f"minimum {least}", rule or "minimum"
    elif desired < wanted:
        note, rule = f"maximum {rules.max_scale}", "maximum"
    else:
        note, rule = "", ""
    return Verdict(desired, desired, note, rule) if desired else _zero(rules, observed, phase, now)


def _bounded(wanted: int, least: int, most: int) -> int:
    return least if wanted < least else min(wanted, most) if most else wanted


def _zero(rules: Kpa, observed: Observed, phase: Phase, now: float) -> Verdict:
    passed = now - phase.since
    if phase.state == "activating":
        limit = rules.progress_s + ACTIVATION_BUFFER_S
        if passed > limit:
            return Verdict(0, 0, f"not ready within {limit:g} s", "deadline")
        return Verdict(None, -1, "starting", "activation")
    if phase.state == "active":
        if passed >= rules.window_s:
            return Verdict(None, 0, f"nothing asked for {rules.window_s:g} s, about to go", "grace")
        return Verdict(1, 1, f"active for {passed:.0f} s of at least {rules.window_s:g} s", "window")
    return _last_replica(rules, observed, phase, now)


def _last_replica(rules: Kpa, observed: Observed, phase: Phase, now: float) -> Verdict:
    inactive = now - phase.since
    retention = rules.retention_s if observed.reachable else 0.0
    if inactive >= max(rules.grace_s, retention):
        return Verdict(0, 0)
    if inactive < retention:
        return Verdict(None, 0, f"retention of {retention:g} s", "retention")
    if phase.held_since is not None and now - phase.held_since >= rules.grace_s:
        return Verdict(0, 0)
    return Verdict(None, 0, f"grace of {rules.grace_s:g} s", "grace")


def next_phase(rules: Kpa, want: int, excess: float, observed: Observed, phase: Phase, now: float) -> Phase:
    least = _least(rules, observed, phase.initialized)
    initialized = phase.initialized or observed.ready >= least
    state = _state(want, least, observed.ready, phase.state)
    held = None if want > 0 and excess >= 0 else phase.held_since if phase.held_since is not None else now
    since = phase.since if state == phase.state else now
    return Phase(state, since, initialized, held)


def _least(rules: Kpa, observed: Observed, initialized: bool) -> int:
    """Replicas that must be ready for the revision to count as active."""
    least = rules.min_scale if observed.reachable else 0
    return max(least, 1 if initialized else rules.initial_scale)


def _state(want: int, least: int, ready: int, before: State) -> State:
    if want == 0 or least == 0:
        return "inactive"
    if want < 0 and before == "inactive":
        return "inactive"
    return "active" if ready >= least else "activating"
