"""KEDA around a HorizontalPodAutoscaler: zero to one and back, failing sources, pauses. Followed by hpa.py above zero.

    0 → 1      as soon as a trigger is above its activation threshold
    N → 0      when none has been for the cooldown; a new one first gets its initial cooldown
    failing    after `failureThreshold` polls without an answer the trigger says what the fallback wants

Without KEDA, only the HPA is asked. What `observed.metrics` lacks was not asked yet and counts as neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pilotlight.targets.local.scaling import behavior, hpa, triggers
from pilotlight.targets.local.scaling.behavior import History
from pilotlight.targets.local.scaling.model import Decision, Hpa, Observed
from pilotlight.targets.local.scaling.triggers import Reading


@dataclass(frozen=True, slots=True)
class Memory:
    """`wanted` is the last decision: what shall run, whether or not it does yet."""

    at: float
    wanted: int
    history: History
    last_active: float | None = None
    failures: Mapping[str, int] | None = None
    polled_at: float | None = None
    ahead: float = 0.0  # by how much the clock has jumped back in all

    def earlier(self, seconds: float) -> "Memory":
        return replace(
            self,
            at=self.at - seconds,
            history=self.history.earlier(seconds),
            last_active=None if self.last_active is None else self.last_active - seconds,
            polled_at=None if self.polled_at is None else self.polled_at - seconds,
            ahead=self.ahead + seconds,
        )


def decide(rules: Hpa, observed: Observed, memory: Memory | None, now: float) -> Decision:
    if memory is None:
        memory = _first(rules, observed, now)
    elif now < memory.at:
        memory = memory.earlier(memory.at - now)
    if rules.paused_replicas is not None or rules.paused:
        return _paused(rules, memory, now)
    if rules.keda and _asleep(observed, memory):
        return Decision(0, "0: nothing asks for it", replace(memory, at=now), "zero")
    reading, memory = _read(rules, observed, memory, now)
    if rules.keda and (found := _between(rules, observed, reading, memory, now)) is not None:
        return found
    return _above_zero(rules, observed, reading, memory, now)


def _first(rules: Hpa, observed: Observed, now: float) -> Memory:
    """A Deployment begins with one replica. What already runs may have been active just before it was forgotten."""
    if observed.replicas or observed.was_ready:
        current = observed.replicas
        return Memory(now, current, behavior.first_history(current, now), now if observed.replicas else None)
    current = max(1, rules.min_replicas)
    return Memory(now, current, behavior.first_history(current, now))


def _asleep(observed: Observed, memory: Memory) -> bool:
    """The common case of many idle services, answered without looking further."""
    busy = observed.waiting or observed.in_flight or observed.samples or observed.metrics
    return memory.wanted == 0 and not busy


def _paused(rules: Hpa, memory: Memory, now: float) -> Decision:
    count = memory.wanted if rules.paused_replicas is None else rules.paused_replicas
    history = behavior.first_history(count, now)
    return Decision(count, f"{count}: paused", replace(memory, at=now, wanted=count, history=history), "paused")


def _read(rules: Hpa, observed: Observed, memory: Memory, now: float) -> tuple[Reading, Memory]:
    """What the triggers say; failures are counted once a polling interval, however often somebody asks."""
    due = memory.polled_at is None or now - memory.polled_at >= rules.polling_s
    raw = triggers.values(rules, observed, now)
    failures = triggers.failures(raw, memory.failures or {}) if due else memory.failures or {}
    reading = triggers.reading(rules, raw, failures, observed.ready, memory.wanted)
    return reading, replace(memory, at=now, failures=failures, polled_at=now if due else memory.polled_at)


def _between(rules: Hpa, observed: Observed, reading: Reading, memory: Memory, now: float) -> Decision | None:
    """KEDA's own steps: from zero or idle, to zero or idle. None: the count is left to the HPA."""
    current = memory.wanted
    if reading.active or rules.force_activation:
        return _wake(rules, reading, memory, now)
    if reading.failed and (rules.fallback is None or rules.fallback.replicas):
        failed = " and ".join(reading.failed)
        return None if current else _keep(0, f"0: {failed} cannot be asked", memory, "failed")
    floor = rules.idle_replicas if rules.idle_replicas is not None else 0 if rules.min_replicas == 0 else None
    if floor is not None and current > floor:
        return _rest(rules, observed, memory, floor, now)
    if floor is None and current < rules.min_replicas:
        return _keep(rules.min_replicas, f"{rules.min_replicas}: minimum", memory, "minimum")
    return _keep(current, f"{current}: nothing asks for it", memory, "zero") if current in (0, floor) else None


def _wake(rules: Hpa, reading: Reading, memory: Memory, now: float) -> Decision | None:
    """`last_active` stands still while a source fails, as KEDA keeps it."""
    current = memory.wanted
    idle = rules.idle_replicas is not None and current < rules.min_replicas
    if current and not idle:
        return None
    if rules.paused_out:
        return _keep(current, f"{current}: scaling out is paused", memory, "paused")
    count = max(1, rules.min_replicas)
    why = "activation is forced" if rules.force_activation and not reading.active else reading.why
    memory = replace(memory, last_active=now, history=behavior.first_history(count, now))
    return _keep(count, f"{count}: {why}", memory, "activation")


def _rest(rules: Hpa, observed: Observed, memory: Memory, floor: int, now: float) -> Decision | None:
    passed, period, _ = _idle_for(rules, observed, memory, now)
    if rules.paused_in or passed <= period:
        return None
    return _keep(floor, f"{floor}: nothing asked for {period:g} s", memory, "zero" if floor == 0 else "idle")


def _idle_for(rules: Hpa, observed: Observed, memory: Memory, now: float) -> tuple[float, float, str]:
    """How long nothing has asked, how long that must be, and what KEDA calls this time."""
    if memory.last_active is not None:
        return now - memory.last_active, rules.cooldown_s, "cooldown"
    created = observed.created_at - memory.ahead if observed.created_at > now else observed.created_at
    return now - created, rules.initial_cooldown_s, "initial cooldown"


def _keep(count: int, reason: str, memory: Memory, rule: str) -> Decision:
    return Decision(count, reason, replace(memory, wanted=count), rule)


def _above_zero(rules: Hpa, observed: Observed, reading: Reading, memory: Memory, now: float) -> Decision:
    up = replace(rules.up, select="Disabled") if rules.paused_out else rules.up
    down = replace(rules.down, select="Disabled") if rules.paused_in else rules.down
    bounded = replace(rules, min_replicas=max(1, rules.min_replicas), up=up, down=down, metrics=reading.metrics)
    found = hpa.decide(bounded, reading.values, observed, memory.wanted, memory.history, now)
    active = reading.active or rules.force_activation
    last = now if active and not reading.failed else memory.last_active
    before, memory = memory, replace(memory, wanted=found.desired, history=found.history, last_active=last)
    if reading.fallback:
        reason = f"{found.desired} (fallback): {reading.fallback}"
        return Decision(found.desired, reason, memory, "fallback")
    resting = rules.keda and not active and found.rule in ("metrics", "bound") and rules.min_replicas == 0
    if resting and found.desired == before.wanted == 1:
        passed, period, word = _idle_for(rules, observed, before, now)
        reason = f"held at 1: {word} of {period:g} s, {period - passed:.0f} s left"
        return Decision(1, reason, memory, "cooldown")
    return Decision(found.desired, found.reason, memory, found.rule)
