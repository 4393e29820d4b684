"""Knative's pod autoscaler: from the load of two windows to a number of replicas. Followed by scale_to_zero.py.

wanted   = ceil(average over the window / target), target = what one replica may have × utilisation
limits   = floor(ready / 2) … ceil(ready × 1000) in one step
panic    when the short window wants twice of what is ready: the larger of both counts, and no step down
         until a whole stable window has passed below that
delay    the highest count of the last `scale-down-delay`
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from pilotlight.targets.local.scaling.model import Kpa

LEAST_TARGET: Final = 0.01
TICK_S: Final = 2  # the delay's window is kept in steps of this


@dataclass(frozen=True, slots=True)
class Load:
    """Averages of concurrency or requests per second over both windows."""

    stable: float
    panic: float


@dataclass(frozen=True, slots=True)
class Recall:
    """What the next decision needs: panic, and the counts that the delay still looks at, largest and oldest first."""

    panic_since: float | None = None
    panic_replicas: int = 0
    delayed: tuple[tuple[int, int], ...] = ()

    def earlier(self, seconds: float) -> "Recall":
        """Times moved back with a clock that jumped."""
        since = None if self.panic_since is None else self.panic_since - seconds
        delayed = tuple((index - round(seconds / TICK_S), count) for index, count in self.delayed)
        return replace(self, panic_since=since, delayed=delayed)


@dataclass(frozen=True, slots=True)
class Wish:
    """`excess`: requests that could come at once and still find room, Knative's excess burst capacity."""

    desired: int
    excess: float
    rule: str
    reason: str
    recall: Recall


def capacity(rules: Kpa) -> float:
    """What one replica may have: the target, or containerConcurrency where that is less."""
    if rules.metric == "concurrency" and rules.container_concurrency:
        return min(rules.target, float(rules.container_concurrency))
    return rules.target


def target(rules: Kpa) -> float:
    return max(LEAST_TARGET, capacity(rules) * rules.utilization)


def first_recall(ready: int, now: float) -> Recall:
    """Nothing is known of the time before: several replicas are kept as in panic until a window has been seen."""
    return Recall(now if ready > 1 else None, ready)


def wish(rules: Kpa, load: Load, ready: int, reachable: bool, recall: Recall, now: float) -> Wish:
    each = target(rules)
    stable_wanted, panic_wanted = math.ceil(load.stable / each), math.ceil(load.panic / each)
    stable = _limited(rules, stable_wanted, ready, reachable)
    panic = _limited(rules, panic_wanted, ready, reachable)
    over = panic_wanted / max(1, ready) >= rules.panic_threshold_percent / 100
    recall = _panic(rules, recall, over, now)
    excess = _excess(rules, load, ready)
    desired, rule = stable, "stable"
    reason = _sentence(rules, load.stable, rules.window_s, each) + _step(stable_wanted, stable, ready)
    if recall.panic_since is not None:
        largest = max(stable, panic, recall.panic_replicas)
        if panic > stable:
            reason = _sentence(rules, load.panic, rules.window_s * rules.panic_window_percent / 100, each)
        held = largest > max(stable, panic)
        reason += f", {'no step down in panic' if held else 'panic'}"
        recall = replace(recall, panic_replicas=largest)
        desired, rule = largest, "panic"
    if reachable and rules.scale_down_delay_s > 0:
        recall = replace(recall, delayed=_delayed(rules, recall, desired, now))
        if recall.delayed[0][1] != desired:
            reason += f", {desired} after the scale-down delay of {rules.scale_down_delay_s:g} s"
            desired, rule = recall.delayed[0][1], "delay"
    return Wish(desired, excess, rule, reason, recall)


def _limited(rules: Kpa, wanted: int, ready: int, reachable: bool) -> int:
    """At least one replica more is always allowed: 1.1 times 2 rounds up to 3."""
    present = max(1, ready)
    most = math.ceil(rules.max_up_rate * present)
    least = math.floor(present / rules.max_down_rate) if reachable else 0
    limited = min(max(wanted, least), most)
    return max(limited, rules.activation_scale) if wanted > 0 and rules.activation_scale > 1 else limited


def _step(wanted: int, limited: int, ready: int) -> str:
    """Why it is not the number that the division gives."""
    if limited > max(wanted, 1):
        return f", at most from {ready} to {limited} in one step" if wanted < limited <= ready else ", activation scale"
    return f", at most from {ready} to {limited} in one step" if limited < wanted else ""


def _panic(rules: Kpa, recall: Recall, over: bool, now: float) -> Recall:
    if over:
        return replace(recall, panic_since=now)
    if recall.panic_since is not None and recall.panic_since + rules.window_s < now:
        return replace(recall, panic_since=None, panic_replicas=0)
    return recall


def _delayed(rules: Kpa, recall: Recall, desired: int, now: float) -> tuple[tuple[int, int], ...]:
    """Counts that a later, larger one has made pointless are dropped, so the first is always the largest."""
    index, size = math.floor(now / TICK_S), math.ceil(rules.scale_down_delay_s / TICK_S)
    kept = [(at, count) for at, count in recall.delayed if count > desired and index - at < size]
    if kept and kept[-1][0] == index:
        return tuple(kept)
    return (*kept, (index, desired))


def _excess(rules: Kpa, load: Load, ready: int) -> float:
    if rules.burst_capacity <= 0:
        return rules.burst_capacity
    return float(math.floor(ready * capacity(rules) - rules.burst_capacity - load.panic))


def _sentence(rules: Kpa, value: float, window_s: float, each: float) -> str:
    unit = "requests/s" if rules.metric == "rps" else "concurrent"
    return f"{value:.3g} {unit} over {window_s:g} s / {each:g} each"
