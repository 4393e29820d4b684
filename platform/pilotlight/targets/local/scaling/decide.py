"""How many replicas, and why: the one entry to scaling. Pure; who asks keeps `Decision.memory` and hands it back.

Kpa    load of both windows → kpa.wish → scale_to_zero.verdict
Hpa    keda.decide, or hpa.decide where no KEDA stands around it
Fixed  its own number
"""

from dataclasses import dataclass
from typing import Any

from pilotlight.targets.local.scaling import keda, kpa, scale_to_zero, windows
from pilotlight.targets.local.scaling.model import Decision, Fixed, Hpa, Kpa, Observed, Scaling


@dataclass(frozen=True, slots=True)
class KpaMemory:
    at: float
    recall: kpa.Recall
    phase: scale_to_zero.Phase


def decide(scaling: Scaling, observed: Observed, memory: Any, now: float) -> Decision:
    """`memory` is that of the last decision on this revision; None, or one of other rules, begins anew."""
    if isinstance(scaling, Kpa):
        return _kpa(scaling, observed, memory if isinstance(memory, KpaMemory) else None, now)
    if isinstance(scaling, Hpa):
        return keda.decide(scaling, observed, memory if isinstance(memory, keda.Memory) else None, now)
    return _fixed(scaling)


def _fixed(scaling: Fixed) -> Decision:
    return Decision(scaling.replicas, f"{scaling.replicas}: fixed", rule="fixed")


def _kpa(rules: Kpa, observed: Observed, memory: KpaMemory | None, now: float) -> Decision:
    memory = _remembered(rules, observed, memory, now)
    phase = memory.phase
    if _asleep(rules, observed, phase):
        memory = KpaMemory(now, memory.recall, phase)
        return Decision(0, f"0: nothing asked for {rules.window_s:g} s", memory, "zero")
    load = _load(rules, observed, memory, now)
    wish = kpa.wish(rules, load, observed.ready, observed.reachable, memory.recall, now)
    busy = observed.waiting + observed.in_flight
    # A request that the windows have forgotten, because it takes long, still has its replica.
    verdict = scale_to_zero.verdict(rules, max(wish.desired, 1) if busy else wish.desired, observed, phase, now)
    phase = scale_to_zero.next_phase(rules, verdict.want, wish.excess, observed, phase, now)
    after = KpaMemory(now, wish.recall, phase)
    return _answer(rules, observed, wish, verdict, after)


def _remembered(rules: Kpa, observed: Observed, memory: KpaMemory | None, now: float) -> KpaMemory:
    """A clock that jumped back adds no time: what is remembered moves back with it."""
    if memory is None:
        recall = kpa.first_recall(observed.ready, now)
        return KpaMemory(now, recall, scale_to_zero.first_phase(rules, observed, now))
    back = memory.at - now
    if back <= 0:
        return memory
    return KpaMemory(now, memory.recall.earlier(back), memory.phase.earlier(back))


def _asleep(rules: Kpa, observed: Observed, phase: scale_to_zero.Phase) -> bool:
    """The common case of many idle services, answered without looking further."""
    return (
        observed.replicas == 0
        and not observed.samples
        and not (observed.waiting or observed.in_flight)
        and phase.state == "inactive"
        and (rules.min_scale == 0 or not observed.reachable)
    )


def _load(rules: Kpa, observed: Observed, memory: KpaMemory, now: float) -> kpa.Load:
    seen = windows.buckets(observed, rules.metric, rules.window_s, now)
    began = memory.phase.since if memory.phase.state == "active" else None
    weighted = rules.algorithm != "linear"
    panic_s = rules.window_s * rules.panic_window_percent / 100
    return kpa.Load(
        windows.average(seen, began, rules.window_s, now, weighted),
        windows.average(seen, began, panic_s, now, weighted),
    )


def _answer(
    rules: Kpa, observed: Observed, wish: kpa.Wish, verdict: scale_to_zero.Verdict, memory: KpaMemory
) -> Decision:
    """`4: 37.2 concurrent over 60 s / 7 each, burst capacity -211`; a count that is only held says so."""
    if verdict.desired is None:
        held = _held(rules, observed)
        start = f"held at {held}" if held else "0"
        return Decision(held, f"{start}: {verdict.note}", memory, verdict.rule)
    if verdict.desired == 0:
        note = verdict.note or f"nothing asked for {rules.window_s:g} s"
        return Decision(0, f"0: {note}", memory, verdict.rule or "zero")
    if verdict.rule == "window":
        return Decision(verdict.desired, f"{verdict.desired}: {verdict.note}", memory, verdict.rule)
    burst = f", burst capacity {wish.excess:g}" if rules.burst_capacity > 0 else ""
    note = f", {verdict.note}" if verdict.note else ""
    reason = f"{verdict.desired}: {wish.reason}{note}{burst}"
    return Decision(verdict.desired, reason, memory, verdict.rule or wish.rule)


def _held(rules: Kpa, observed: Observed) -> int:
    """What runs stays; a revision that starts for the first time begins with its initial scale."""
    if observed.was_ready or not observed.reachable:
        return observed.replicas
    return max(observed.replicas, rules.initial_scale, rules.min_scale)
