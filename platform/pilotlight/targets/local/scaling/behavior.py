"""How fast a HorizontalPodAutoscaler may follow its metrics: stabilisation windows, then policies. Used by hpa.py.

window   down: the highest wish of its last seconds; up: the lowest
policy   what ran a period ago ± its pods or percent; `Max` takes the policy that allows most, `Min` the least
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pilotlight.targets.local.scaling.model import Hpa, Policy, Rules

Points = tuple[tuple[float, int], ...]  # time and count, or time and change; oldest first


@dataclass(frozen=True, slots=True)
class History:
    """Wishes as far as they can still matter, and what was changed in the longest period of a policy."""

    highs: Points = ()  # of the down window, but for those that a later and higher wish made pointless
    lows: Points = ()  # of the up window, likewise
    ups: Points = ()
    downs: Points = ()

    def earlier(self, seconds: float) -> "History":
        """Times moved back with a clock that jumped."""
        every = (self.highs, self.lows, self.ups, self.downs)
        return History(*(tuple((at - seconds, n) for at, n in points) for points in every))


def first_history(current: int, now: float) -> History:
    """What runs counts as the first wish, so that a scaler which just started takes nothing away at once."""
    return History(((now, current),), ((now, current),))


def stabilised(rules: Hpa, history: History, wanted: int, current: int, now: float) -> tuple[int, History]:
    highs = [(at, n) for at, n in history.highs if at > now - rules.down.window_s and n > wanted]
    lows = [(at, n) for at, n in history.lows if at > now - rules.up.window_s and n < wanted]
    highest = max((n for _, n in highs), default=wanted)
    lowest = min((n for _, n in lows), default=wanted)
    kept = replace(history, highs=(*highs, (now, wanted)), lows=(*lows, (now, wanted)))
    return min(max(current, lowest), highest), kept


def limited(rules: Hpa, history: History, wanted: int, current: int, now: float) -> tuple[int, str]:
    """The count that policies and bounds allow, and which of them held it back."""
    if wanted > current:
        allowed = max(current, _most(rules.up, history, current, now))
        if wanted > min(allowed, rules.max_replicas):
            bound = rules.max_replicas <= allowed
            note = f"maximum {rules.max_replicas}" if bound else _pace(rules.up, "more")
            return min(allowed, rules.max_replicas), note
    elif wanted < current:
        allowed = min(current, _fewest(rules.down, history, current, now))
        if wanted < max(allowed, rules.min_replicas):
            bound = rules.min_replicas >= allowed
            note = f"minimum {rules.min_replicas}" if bound else _pace(rules.down, "fewer")
            return max(allowed, rules.min_replicas), note
    return wanted, ""


def changed(rules: Hpa, history: History, before: int, after: int, now: float) -> History:
    """With the step just taken; steps that no policy asks for any more are forgotten."""
    longest = max((policy.period_s for policy in (*rules.up.policies, *rules.down.policies)), default=0.0)
    ups = tuple((at, n) for at, n in history.ups if at > now - longest)
    downs = tuple((at, n) for at, n in history.downs if at > now - longest)
    if after > before:
        ups = (*ups, (now, after - before))
    elif after < before:
        downs = (*downs, (now, before - after))
    return replace(history, ups=ups, downs=downs)


def _most(rules: Rules, history: History, current: int, now: float) -> int:
    if rules.select == "Disabled":
        return current
    starts = ((policy, _start(policy, history, current, now)) for policy in rules.policies)
    allowed = (n + p.value if p.type == "Pods" else math.ceil(round(n * (1 + p.value / 100), 6)) for p, n in starts)
    return _pick(allowed, least=rules.select == "Min", default=current)


def _fewest(rules: Rules, history: History, current: int, now: float) -> int:
    """For a step down the policy that changes least is the one that leaves most."""
    if rules.select == "Disabled":
        return current
    starts = ((policy, _start(policy, history, current, now)) for policy in rules.policies)
    allowed = (n - p.value if p.type == "Pods" else int(round(n * (1 - p.value / 100), 6)) for p, n in starts)
    return _pick(allowed, least=rules.select == "Max", default=current)


def _pick(counts: Iterable[int], *, least: bool, default: int) -> int:
    return min(counts, default=default) if least else max(counts, default=default)


def _start(policy: Policy, history: History, current: int, now: float) -> int:
    """How many there were when the policy's period began."""
    since = now - policy.period_s
    added = sum(n for at, n in history.ups if at > since)
    removed = sum(n for at, n in history.downs if at > since)
    return current - added + removed


def _pace(rules: Rules, word: str) -> str:
    if rules.select == "Disabled":
        return f"none {word} allowed"
    steps = (f"{p.value}{' %' if p.type == 'Percent' else ''} {word} in {p.period_s:g} s" for p in rules.policies)
    return f"at most {(' or ' if rules.select == 'Max' else ' and ').join(steps)}"
