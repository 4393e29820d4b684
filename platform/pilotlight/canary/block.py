"""A policy from what somebody wrote: the flags of `canary start`, or a document's own words. The same keys.

What stands under spec.canary of a document has become its annotation (spec/canary_block.py):

metadata:
  annotations:
    pilotlight.dev/canary: |
      steps: 5,25,50,100
      check: [p99_ms<300, error_rate<1%]
      compare: baseline
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from pilotlight.canary.checks import own_checks, parse_check
from pilotlight.canary.examples import read_example
from pilotlight.canary.model import Check, Policy
from pilotlight.errors import UsageError
from pilotlight.names import ANNOTATION_CANARY
from pilotlight.quantities import seconds
from pilotlight.spec.nodes import parse
from pilotlight.spec.problems import Problems
from pilotlight.spec.types import shown, suggestion

Json = Any
MOST_STEPS: Final = 8


def policy_of(written: Mapping[str, Json]) -> Policy:
    """UsageError names the key and the fix. Whoever gives nothing to be judged by asks for the baseline."""
    given = {key: value for key, value in written.items() if value is not None}
    for key in given:
        if key not in (*KEYS, "manual"):
            near = suggestion(key, KEYS) or f"; it has {', '.join(KEYS)}"
            raise UsageError(f"{key} is no setting of a canary{near}")
    fields = {name: read(key, given[key]) for key, (name, read) in _FIELDS.items() if key in given}
    if _truth("manual", given.get("manual", False)):
        fields["auto_promote"] = False
    checks = _checks(given)
    compare = fields.setdefault("compare", "" if checks else "baseline")
    unbound = [each.name for each in checks if not compare and each.maximum is None and each.minimum is None]
    if unbound:
        raise UsageError(f"check {unbound[0]} has no bound; write {unbound[0]}<… or add compare baseline")
    return Policy(**fields, checks=checks)


def annotated(annotations: Mapping[str, str]) -> Policy | None:
    """Of a document's annotations; None where it asks for no canary."""
    text = annotations.get(ANNOTATION_CANARY)
    return None if text is None else policy_of(read_block(text))


def read_block(text: str) -> dict[str, Json]:
    """YAML or JSON, as any document is read."""
    problems = Problems()
    found = parse(text, "", problems)
    if problems.errors:
        wrong = problems.errors[0]
        raise UsageError(f"line {max(wrong.place.line, 1)} of it: {wrong.message}")
    block = found[0].plain() if found else {}
    if not isinstance(block, dict) or len(found) > 1:
        raise UsageError("must be a map such as {steps: 5,25,50,100, check: p99_ms<300}")
    return block


def _checks(given: Mapping[str, Json]) -> tuple[Check, ...]:
    checks = [parse_check(text) for text in _texts("check", given.get("check", ()))]
    twice = [each.name for index, each in enumerate(checks) if each.name in {other.name for other in checks[:index]}]
    if twice:
        raise UsageError(f"check {twice[0]} is given twice; keep one of them")
    promql, maxima, minima = (_pairs(key, given.get(key, ())) for key in ("promql", "max", "min"))
    return (*checks, *own_checks(promql, maxima, minima))


def _texts(key: str, value: Json) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"{key} is {shown(value)}, must be a text or a list of texts")
    return list(texts)


def _pairs(key: str, value: Json) -> list[str]:
    """`NAME=…` each; a document may write a map, or the number alone that is the bound of its only query."""
    if isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [str(value)]
    return _texts(key, value)


def _steps(key: str, value: Json) -> tuple[int, ...]:
    parts = value.replace("%", "").split(",") if isinstance(value, str) else value
    parts = parts if isinstance(parts, list | tuple) else [parts]
    try:
        found = tuple(int(str(part).strip()) for part in parts)
    except ValueError:
        found = ()
    rising = all(before < after for before, after in pairwise(found))
    if not found or not rising or found[0] < 1 or found[-1] != 100 or len(found) > MOST_STEPS:
        written = shown(value) if not isinstance(value, list | tuple) else ",".join(map(str, value))
        must = f"rising percentages that end in 100, at most {MOST_STEPS}, such as 5,25,50,100"
        raise UsageError(f"{key} is {written}, must be {must}")
    return found


def _duration(key: str, value: Json) -> float:
    found = value if isinstance(value, int | float) and not isinstance(value, bool) else seconds(str(value))
    if found is None or not math.isfinite(found) or found < 0:
        raise UsageError(f"{key} is {shown(value)}, must be a duration such as 15s or 2m")
    return float(found)


def _interval(key: str, value: Json) -> float:
    found = _duration(key, value)
    if found <= 0:
        raise UsageError(f"{key} is {shown(value)}, must be more than nothing, such as 15s")
    return found


def _whole(least: int) -> Callable[[str, Json], int]:
    def read(key: str, value: Json) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{key} is {shown(value)}, must be a whole number of at least {least}")
        return value

    return read


def _ratio(key: str, value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value < math.inf:
        raise UsageError(f"{key} is {shown(value)}, must be a number of at least 1, such as 1.2")
    return float(value)


def _one_of(*values: str) -> Callable[[str, Json], str]:
    def read(key: str, value: Json) -> str:
        if value not in values:
            raise UsageError(f"{key} is {shown(value)}, must be {' or '.join(filter(None, values))}")
        return str(value)

    return read


def _truth(key: str, value: Json) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{key} is {shown(value)}, must be true or false")
    return value


# Keys as flags and documents write them, the field of Policy that each sets, and how it is read.
_FIELDS: Final[dict[str, tuple[str, Callable[[str, Json], Any]]]] = {
    "steps": ("steps", _steps),
    "bake": ("bake_s", _duration),
    "interval": ("interval_s", _interval),
    "compare": ("compare", _one_of("baseline", "")),
    "ratio": ("ratio", _ratio),
    "min-requests": ("min_requests", _whole(0)),
    "failure-limit": ("failure_limit", _whole(1)),
    "on-no-data": ("on_no_data", _one_of("probe", "pause", "fail", "pass")),
    "example": ("example", read_example),
    "on-inconclusive": ("on_inconclusive", _one_of("pause", "fail", "pass")),
    "inconclusive-limit": ("inconclusive_limit", _whole(1)),
    "deadline": ("deadline_s", _interval),
    "auto-promote": ("auto_promote", _truth),
    "keep-stable": ("keep_stable_s", _duration),
    "dry-run-checks": ("dry_run_checks", _truth),
}
KEYS: Final = (*_FIELDS, "check", "promql", "max", "min")
