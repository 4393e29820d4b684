"""Whether a canary may go on, from what was measured. Pure: after queries, before steps.

A measurement has Failed when the data say so: chance alone would show as much harm less often than sequential.py
allows at this look. It is Inconclusive while the figure is beyond its bound and chance may explain it, when harm is
likely but not sure, or when there were fewer requests than the policy wants. Too few requests never make a
measurement Successful, but they may suffice to fail it: ten errors in ten requests need no eleventh.
Error means that nobody could be asked.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.canary import figures
from pilotlight.canary.checks import COMPARED, METRICS, figure
from pilotlight.canary.model import Check, Measurement, Policy, Verdict
from pilotlight.canary.queries import Missing, Observed
from pilotlight.canary.sequential import finding, look_after
from pilotlight.canary.strata import Before, Pair, together

Own = Mapping[str, float | Missing]  # what the user's own queries gave, by the name of the check
BASELINE: Final = " vs baseline"  # behind the name of a comparison
SEVERITY: Final[tuple[Verdict, ...]] = ("Failed", "Error", "Inconclusive", "Successful")
NO_FAULT: Final = ("empty", "nan", "early")
NOT_ASKED: Final = Missing("empty", "nobody was asked")


class Judgement(Struct, frozen=True, omit_defaults=True):
    """One look at the data. `lacking`: requests that the canary, and `lacking_baseline`: the baseline, is short of."""

    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    reason: str = ""
    lacking: int = 0
    lacking_baseline: int = 0
    pair: Pair | None = None  # what was compared at this share


class Look(NamedTuple):
    """What all measurements of one look share."""

    policy: Policy
    canary: Observed | Missing
    baseline: Observed | Missing
    number: int
    tests: int
    at: str
    asked: Mapping[str, str]
    beside: Observed | Missing  # the canary, over the very time of the baseline
    pairs: Sequence[Pair]  # at each share so far, this one the last
    both: Pair | None  # as they are told together
    looks_before: int  # until this share


def judge(
    policy: Policy,
    canary: Observed | Missing,
    baseline: Observed | Missing = NOT_ASKED,
    own: Own = {},  # noqa: B006 - never changed
    history: Sequence[Measurement] = (),
    at: str = "",
    asked: Mapping[str, str] = {},
    beside: Observed | Missing | None = None,
    before: Before = Before(),  # noqa: B008 - never changed
) -> Judgement:
    """`asked` are the queries by check, to be shown with the values; `history` the measurements so far. `beside` is the
    canary over the time that the baseline was measured over, where that is not all of its time; `before` what earlier
    shares have told."""
    ours, same, theirs = _usable(canary), _usable(canary if beside is None else beside), _usable(baseline)
    pair = Pair(same, theirs) if isinstance(same, Observed) and isinstance(theirs, Observed) else None
    pairs = (*before.pairs, *([pair] if pair else []))
    number, tests = look_after(history), chances(policy)
    both = together(pairs) if pair and policy.compare else None
    look = Look(policy, ours, theirs, number, tests, at, asked, same, pairs, both, before.looks)
    measurements = tuple(_measurements(look, own)) or (_enough(look, _blank(look, "requests")),)
    if policy.dry_run_checks:
        return Judgement("Successful", measurements, pair=pair if policy.compare else None)
    worst = min((each.verdict for each in measurements), key=SEVERITY.index)
    reason = next((each.reason for each in measurements if each.verdict == worst), "")
    empty = any(isinstance(value, Missing) and value.kind in ("empty", "nan") for value in own.values())
    return Judgement(
        worst,
        measurements,
        reason,
        max(_lacking(look.canary, policy), _lacking(look.beside, policy) if policy.compare else 0, int(empty)),
        _lacking(look.baseline, policy) if policy.compare else 0,
        pair if policy.compare else None,
    )


def compared(policy: Policy) -> list[str]:
    """The figures that are held against the baseline's: those of COMPARED and those that have a check."""
    names = (*COMPARED, *(each.name for each in policy.checks if not each.query and each.name != "rps"))
    return list(dict.fromkeys(names)) if policy.compare else []


def chances(policy: Policy) -> int:
    """How many chances one look has to be wrong."""
    bounds = [bound for each in policy.checks if not each.query for bound in (each.maximum, each.minimum)]
    return sum(bound is not None for bound in bounds) + len(compared(policy))


def shares(policy: Policy) -> int:
    """At how many shares there is a baseline to be compared with."""
    return max(len(policy.steps) - 1, 1)


def _measurements(look: Look, own: Own) -> Iterator[Measurement]:
    for check in look.policy.checks:
        if check.query:
            yield _own(look, check, own.get(check.name, NOT_ASKED))
        elif check.maximum is not None or check.minimum is not None:
            yield _bounded(look, check)
    for name in compared(look.policy):
        yield _comparison(look, name)


def _blank(look: Look, check: str) -> Measurement:
    requests = look.canary.requests if isinstance(look.canary, Observed) else 0.0
    query = look.asked.get(check, look.asked.get(check.removesuffix(BASELINE), ""))
    made = Measurement(check, look.at, "Successful", requests=math.floor(requests), query=query, look=look.number)
    return _without(made, look.canary) if isinstance(look.canary, Missing) else made


def _without(made: Measurement, missing: Missing) -> Measurement:
    """No data is neither a failure nor a success; that nobody could be asked is an error."""
    return replace(made, verdict="Inconclusive" if missing.kind in NO_FAULT else "Error", reason=missing.reason)


def _own(look: Look, check: Check, found: float | Missing) -> Measurement:
    """Of a query nobody knows how many requests are behind it: its value decides, and failure_limit heals a slip."""
    bound = check.maximum if check.maximum is not None else check.minimum
    made = replace(_blank(look, check.name), verdict="Successful", reason="", bound=bound)
    if isinstance(found, Missing) or math.isnan(found):
        missing = found if isinstance(found, Missing) else Missing("nan", f"promql {check.name} gives NaN")
        return _without(made, missing)
    made = replace(made, value=found)
    few = look.policy.min_requests > 0 and _lacking(look.canary, look.policy) > 0
    if not _beyond(check, found):
        return _enough(look, made) if few else made
    why = f"{check.name} is {found:.6g}, {_not_within(check)}"
    return replace(made, reason=why, verdict="Inconclusive" if few else "Failed")


def _bounded(look: Look, check: Check) -> Measurement:
    made, seen = _blank(look, check.name), look.canary
    value = figures.value(check.name, seen) if isinstance(seen, Observed) else None
    if isinstance(seen, Missing) or value is None:
        return made if made.reason else _without(made, Missing("nan", f"{check.name} cannot be told from the metrics"))
    harm = [figures.above_maximum(check.name, seen, check.maximum)] if check.maximum is not None else []
    harm += [figures.below_minimum(check.name, seen, check.minimum)] if check.minimum is not None else []
    low, high = figures.interval(check.name, seen)
    bound = check.maximum if check.maximum is not None else check.minimum
    made = replace(made, value=value, low=low, high=high, bound=bound)
    found = finding(min(harm), look.number, look.tests)
    if found == "worse" and _counts(look, check.name, seen):
        return replace(made, verdict="Failed", reason=f"{_sentence(made)}, {_not_within(check)}")
    if found != "fine" or _beyond(check, value):
        why = f"{_sentence(made)}, perhaps {_not_within(check)}: too few to be sure"
        return replace(made, verdict="Inconclusive", reason=why)
    return _enough(look, made)


def _comparison(look: Look, name: str) -> Measurement:
    made, ours, theirs = _blank(look, name + BASELINE), look.beside, look.baseline
    if isinstance(ours, Missing):
        return _without(made, ours)
    if isinstance(theirs, Missing):
        return _without(made, Missing(theirs.kind, f"the baseline: {theirs.reason}"))
    ours, theirs = look.both or Pair(ours, theirs)
    value, base = figures.value(name, ours), figures.value(name, theirs)
    if value is None or base is None:
        return _without(made, Missing("nan", f"{name} cannot be told from the metrics"))
    ratio = look.policy.ratio
    low, high = figures.interval(name, ours)
    counts = math.floor(ours.requests)
    made = replace(made, value=value, baseline=base, bound=ratio * base, low=low, high=high, requests=counts)
    chance = figures.worse(name, look.pairs, ratio)
    found = finding(chance, look.number - look.looks_before, look.tests * shares(look.policy))
    asked = sum(each.baseline.requests for each in look.pairs)
    than = f"than {ratio:g} times the baseline's {figure(name, base)} of {asked:.0f}"
    if found == "worse" and _counts(look, name, ours):
        return replace(made, verdict="Failed", reason=f"{_sentence(made)}, worse {than}")
    if found != "fine":
        return replace(
            made, verdict="Inconclusive", reason=f"{_sentence(made)}, perhaps worse {than}: too few to be sure"
        )
    return _enough(look, made)


def _enough(look: Look, made: Measurement) -> Measurement:
    """Successful only with as many requests as the policy wants, of the baseline too where it counts."""
    if made.verdict != "Successful":
        return made
    wanted, held = look.policy.min_requests, made.check.endswith(BASELINE)
    seen = look.beside if held else look.canary
    if _lacking(seen, look.policy):
        had = math.floor(seen.requests) if isinstance(seen, Observed) else 0
        return replace(made, verdict="Inconclusive", reason=f"{had} of the {wanted} requests that it takes")
    if held and _lacking(look.baseline, look.policy):
        return replace(made, verdict="Inconclusive", reason=f"the baseline had fewer than {wanted} requests")
    return made


def _counts(look: Look, name: str, seen: Observed) -> bool:
    return name in figures.EXACT or not _lacking(seen, look.policy)


def _lacking(seen: Observed | Missing, policy: Policy) -> int:
    if isinstance(seen, Missing):
        return max(policy.min_requests, 1) if seen.kind in ("empty", "nan") else 0
    return max(math.ceil(policy.min_requests - seen.requests), 0)


def _beyond(check: Check, value: float) -> bool:
    above = check.maximum is not None and value > check.maximum
    return above or (check.minimum is not None and value < check.minimum)


def _not_within(check: Check) -> str:
    parts = [f"below {_written(check, check.maximum)}"] if check.maximum is not None else []
    parts += [f"above {_written(check, check.minimum)}"] if check.minimum is not None else []
    return f"not {' and '.join(parts)}"


def _written(check: Check, bound: float) -> str:
    return figure(check.name, bound) if check.name in METRICS else f"{bound:g}"


def _sentence(made: Measurement) -> str:
    """`p99_ms is 412 ms (350 ms to 600 ms) in 1200 requests`."""
    name = made.check.removesuffix(BASELINE)
    high = "more" if made.high is None else figure(name, made.high)
    return f"{name} is {figure(name, made.value)} ({figure(name, made.low)} to {high}) in {made.requests} requests"


def _usable(seen: Observed | Missing) -> Observed | Missing:
    """Whatever a metrics server may answer, as counts that can be counted with."""
    if isinstance(seen, Missing):
        return seen
    numbers = (seen.requests, seen.errors, seen.seconds, seen.observed_s)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return Missing("nan", "what the metrics say of its requests is not a number")
    if seen.requests <= 0:
        return Missing("empty", "it had no request")
    rising: list[tuple[float, float]] = []
    for edge, count in sorted(pair for pair in seen.buckets if not math.isnan(pair[0]) and math.isfinite(pair[1])):
        rising.append((edge, max(count, rising[-1][1] if rising else 0.0)))
    return seen._replace(errors=min(seen.errors, seen.requests), buckets=tuple(rising))
