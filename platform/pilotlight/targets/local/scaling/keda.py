"""KEDA's scale executor around the HPA: activation, scale to zero, fallback and pauses; hpa.py decides above zero.

    0 → 1      as soon as a trigger is above its activation threshold
    N → 0      when none has been active for the cooldown; a new ScaledObject first gets its initial cooldown
    failing    after `failureThreshold` failed polls the trigger reports what the fallback's replicas need

Without KEDA only the HPA decides. A metric absent from `observed.metrics` is not polled yet: neither active nor failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pilotlight.targets.local.scaling import behavior, hpa, triggers
from pilotlight.targets.local.scaling.behavior import History
from pilotlight.targets.local.scaling.model import Decision, Hpa, Observed
from pilotlight.targets.local.scaling.triggers import TriggerValues


@dataclass(frozen=True, slots=True)
class KedaState:
    """State between decisions. `wanted` is the last decision, whether or not so many replicas run yet."""

    at: float
    wanted: int
    history: History
    last_active: float | None = None
    failures: Mapping[str, int] | None = None
    polled_at: float | None = None
    clock_shift: float = 0.0  # sum of all backward clock jumps

    def shifted_back(self, seconds: float) -> "KedaState":
        return replace(
            self,
            at=self.at - seconds,
            history=self.history.shifted_back(seconds),
            last_active=None if self.last_active is None else self.last_active - seconds,
            polled_at=None if self.polled_at is None else self.polled_at - seconds,
            clock_shift=self.clock_shift + seconds,
        )


def decide(rules: Hpa, observed: Observed, memory: KedaState | None, now: float) -> Decision:
    if memory is None:
        memory = _initial_state(rules, observed, now)
    elif now < memory.at:
        memory = memory.shifted_back(memory.at - now)
    if rules.paused_replicas is not None or rules.paused:
        return _paused(rules, memory, now)
    if rules.keda and _is_idle(observed, memory):
        return Decision(0, "0: nothing asks for it", replace(memory, at=now), "zero")
    triggered, memory = _evaluate_triggers(rules, observed, memory, now)
    if rules.keda and (step := _scale_from_or_to_zero(rules, observed, triggered, memory, now)) is not None:
        return step
    return _above_zero(rules, observed, triggered, memory, now)


def _initial_state(rules: Hpa, observed: Observed, now: float) -> KedaState:
    """Return the state after a restart or for a new Deployment, which begins with one replica."""
    if observed.replicas or observed.was_ready:
        current = observed.replicas
        # Running replicas may have been active just before the restart: the cooldown starts now.
        return KedaState(now, current, behavior.initial_history(current, now), now if observed.replicas else None)
    current = max(1, rules.min_replicas)
    return KedaState(now, current, behavior.initial_history(current, now))


def _is_idle(observed: Observed, memory: KedaState) -> bool:
    """Fast path of the common case: many services that are idle at zero."""
    busy = observed.waiting or observed.in_flight or observed.samples or observed.metrics
    return memory.wanted == 0 and not busy


def _paused(rules: Hpa, memory: KedaState, now: float) -> Decision:
    count = memory.wanted if rules.paused_replicas is None else rules.paused_replicas
    history = behavior.initial_history(count, now)
    return Decision(count, f"{count}: paused", replace(memory, at=now, wanted=count, history=history), "paused")


def _evaluate_triggers(
    rules: Hpa, observed: Observed, memory: KedaState, now: float
) -> tuple[TriggerValues, KedaState]:
    """Evaluate the triggers; failures count once per polling interval, though decisions are made every second."""
    due = memory.polled_at is None or now - memory.polled_at >= rules.polling_s
    raw = triggers.values(rules, observed, now)
    failures = triggers.failures(raw, memory.failures or {}) if due else memory.failures or {}
    triggered = triggers.evaluate(rules, raw, failures, observed.ready, memory.wanted)
    return triggered, replace(memory, at=now, failures=failures, polled_at=now if due else memory.polled_at)


def _scale_from_or_to_zero(
    rules: Hpa, observed: Observed, triggered: TriggerValues, memory: KedaState, now: float
) -> Decision | None:
    """Decide KEDA's own steps: from zero or idle, to zero or idle. None: the HPA decides."""
    current = memory.wanted
    if triggered.active or rules.force_activation:
        return _activate(rules, triggered, memory, now)
    if triggered.failed and (rules.fallback is None or rules.fallback.replicas):
        failed = " and ".join(triggered.failed)
        return None if current else _decision(0, f"0: {failed} cannot be asked", memory, "failed")
    floor = rules.idle_replicas if rules.idle_replicas is not None else 0 if rules.min_replicas == 0 else None
    if floor is not None and current > floor:
        return _deactivate(rules, observed, memory, floor, now)
    if floor is None and current < rules.min_replicas:
        return _decision(rules.min_replicas, f"{rules.min_replicas}: minimum", memory, "minimum")
    return _decision(current, f"{current}: nothing asks for it", memory, "zero") if current in (0, floor) else None


def _activate(rules: Hpa, triggered: TriggerValues, memory: KedaState, now: float) -> Decision | None:
    """Scale from zero or idle to the minimum; None: already above."""
    current = memory.wanted
    idle = rules.idle_replicas is not None and current < rules.min_replicas
    if current and not idle:
        return None
    if rules.paused_out:
        return _decision(current, f"{current}: scaling out is paused", memory, "paused")
    count = max(1, rules.min_replicas)
    why = "activation is forced" if rules.force_activation and not triggered.active else triggered.why
    memory = replace(memory, last_active=now, history=behavior.initial_history(count, now))
    return _decision(count, f"{count}: {why}", memory, "activation")


def _deactivate(rules: Hpa, observed: Observed, memory: KedaState, floor: int, now: float) -> Decision | None:
    passed, period, _ = _idle_for(rules, observed, memory, now)
    if rules.paused_in or passed <= period:
        return None
    return _decision(floor, f"{floor}: nothing asked for {period:g} s", memory, "zero" if floor == 0 else "idle")


def _idle_for(rules: Hpa, observed: Observed, memory: KedaState, now: float) -> tuple[float, float, str]:
    """Return the idle time, the cooldown that applies, and its name."""
    if memory.last_active is not None:
        return now - memory.last_active, rules.cooldown_s, "cooldown"
    # A creation time in the future was taken before a backward clock jump.
    created = observed.created_at - memory.clock_shift if observed.created_at > now else observed.created_at
    return now - created, rules.initial_cooldown_s, "initial cooldown"


def _decision(count: int, reason: str, memory: KedaState, rule: str) -> Decision:
    return Decision(count, reason, replace(memory, wanted=count), rule)


def _above_zero(rules: Hpa, observed: Observed, triggered: TriggerValues, memory: KedaState, now: float) -> Decision:
    up = replace(rules.up, select="Disabled") if rules.paused_out else rules.up
    down = replace(rules.down, select="Disabled") if rules.paused_in else rules.down
    bounded = replace(rules, min_replicas=max(1, rules.min_replicas), up=up, down=down, metrics=triggered.metrics)
    result = hpa.decide(bounded, triggered.values, observed, memory.wanted, memory.history, now)
    active = triggered.active or rules.force_activation
    last = now if active and not triggered.failed else memory.last_active  # as KEDA: unchanged while a source fails
    before, memory = memory, replace(memory, wanted=result.desired, history=result.history, last_active=last)
    if triggered.fallback:
        reason = f"{result.desired} (fallback): {triggered.fallback}"
        return Decision(result.desired, reason, memory, "fallback")
    cooling = rules.keda and not active and result.rule in ("metrics", "bound") and rules.min_replicas == 0
    if cooling and result.desired == before.wanted == 1:
        passed, period, word = _idle_for(rules, observed, before, now)
        reason = f"held at 1: {word} of {period:g} s, {period - passed:.0f} s left"
        return Decision(1, reason, memory, "cooldown")
    return Decision(result.desired, result.reason, memory, result.rule)
