"""HPA behavior: stabilization windows, then scaling policies. Used by hpa.py.

window   down: the highest recommendation within the window; up: the lowest
policy   replicas one period ago ± pods or percent; `Max` takes the policy that permits the largest change
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pilotlight.targets.local.scaling.model import Hpa, Policy, ScalingRules

Points = tuple[tuple[float, int], ...]  # time and count, or time and change; oldest first


@dataclass(frozen=True, slots=True)
class History:
    """Recommendations within the windows, and scale events within the longest policy period."""

    highs: Points = ()  # down window as a monotonic queue: without entries below a later one
    lows: Points = ()  # up window, likewise
    ups: Points = ()  # scale events: time and replicas added
    downs: Points = ()

    def shifted_back(self, seconds: float) -> "History":
        """Return the history with all times moved back, after a backward clock jump."""
        every = (self.highs, self.lows, self.ups, self.downs)
        return History(*(tuple((at - seconds, n) for at, n in points) for points in every))


def initial_history(current: int, now: float) -> History:
    """Return a history with the present count as first recommendation: a restart must not scale down at once."""
    return History(((now, current),), ((now, current),))


def stabilize(rules: Hpa, history: History, wanted: int, current: int, now: float) -> tuple[int, History]:
    highs = [(at, n) for at, n in history.highs if at > now - rules.down.window_s and n > wanted]
    lows = [(at, n) for at, n in history.lows if at > now - rules.up.window_s and n < wanted]
    highest = max((n for _, n in highs), default=wanted)
    lowest = min((n for _, n in lows), default=wanted)
    history = replace(history, highs=(*highs, (now, wanted)), lows=(*lows, (now, wanted)))
    # As in Kubernetes: move only if every recommendation of the window agrees on the direction.
    return min(max(current, lowest), highest), history


def limit_rate(rules: Hpa, history: History, wanted: int, current: int, now: float) -> tuple[int, str]:
    """Return the count that policies and bounds permit, and which of them limited it."""
    if wanted > current:
        allowed = max(current, _scale_up_limit(rules.up, history, current, now))
        if wanted > min(allowed, rules.max_replicas):
            bound = rules.max_replicas <= allowed
            note = f"maximum {rules.max_replicas}" if bound else _policy_note(rules.up, "more")
            return min(allowed, rules.max_replicas), note
    elif wanted < current:
        allowed = min(current, _scale_down_limit(rules.down, history, current, now))
        if wanted < max(allowed, rules.min_replicas):
            bound = rules.min_replicas >= allowed
            note = f"minimum {rules.min_replicas}" if bound else _policy_note(rules.down, "fewer")
            return max(allowed, rules.min_replicas), note
    return wanted, ""


def record_scale_event(rules: Hpa, history: History, before: int, after: int, now: float) -> History:
    """Return the history with the change just made, without events older than every policy's period."""
    longest = max((policy.period_s for policy in (*rules.up.policies, *rules.down.policies)), default=0.0)
    ups = tuple((at, n) for at, n in history.ups if at > now - longest)
    downs = tuple((at, n) for at, n in history.downs if at > now - longest)
    if after > before:
        ups = (*ups, (now, after - before))
    elif after < before:
        downs = (*downs, (now, before - after))
    return replace(history, ups=ups, downs=downs)


def _scale_up_limit(rules: ScalingRules, history: History, current: int, now: float) -> int:
    if rules.select == "Disabled":
        return current
    starts = ((policy, _period_start_replicas(policy, history, current, now)) for policy in rules.policies)
    allowed = (n + p.value if p.type == "Pods" else math.ceil(round(n * (1 + p.value / 100), 6)) for p, n in starts)
    return _pick(allowed, least=rules.select == "Min", default=current)


def _scale_down_limit(rules: ScalingRules, history: History, current: int, now: float) -> int:
    if rules.select == "Disabled":
        return current
    starts = ((policy, _period_start_replicas(policy, history, current, now)) for policy in rules.policies)
    allowed = (n - p.value if p.type == "Pods" else int(round(n * (1 - p.value / 100), 6)) for p, n in starts)
    return _pick(allowed, least=rules.select == "Max", default=current)  # the largest change leaves the fewest


def _pick(counts: Iterable[int], *, least: bool, default: int) -> int:
    return min(counts, default=default) if least else max(counts, default=default)


def _period_start_replicas(policy: Policy, history: History, current: int, now: float) -> int:
    """Return the replica count at the start of the policy's period."""
    since = now - policy.period_s
    added = sum(n for at, n in history.ups if at > since)
    removed = sum(n for at, n in history.downs if at > since)
    return current - added + removed


def _policy_note(rules: ScalingRules, word: str) -> str:
    if rules.select == "Disabled":
        return f"none {word} allowed"
    steps = (f"{p.value}{' %' if p.type == 'Percent' else ''} {word} in {p.period_s:g} s" for p in rules.policies)
    return f"at most {(' or ' if rules.select == 'Max' else ' and ').join(steps)}"
