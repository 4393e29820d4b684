"""Canary policy, parsed from the flags of `canary start` or from a manifest. Both have the same keys.

spec.canary of a manifest becomes an annotation (spec/canary_block.py):

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
from typing import Any, Final, Literal

from msgspec import Struct

from pilotlight.canary.checks import Check, parse_check, promql_checks
from pilotlight.canary.examples import parse_example
from pilotlight.errors import UsageError
from pilotlight.names import ANNOTATION_CANARY
from pilotlight.quantities import parse_duration
from pilotlight.spec.nodes import parse
from pilotlight.spec.problems import Problems
from pilotlight.spec.types import display, suggestion

Json = Any
MAX_STEPS: Final = 8
OnNoData = Literal["probe", "pause", "fail", "pass"]
OnInconclusive = Literal["pause", "fail", "pass"]


class CanaryPolicy(Struct, frozen=True, omit_defaults=True):
    """Steps, checks and limits of a canary."""

    steps: tuple[int, ...] = (5, 25, 50, 100)
    bake_s: float = 120.0  # minimum time at each step
    interval_s: float = 15.0  # between measurements
    checks: tuple[Check, ...] = ()
    compare: Literal["", "baseline"] = ""
    ratio: float = 1.2  # tolerated factor relative to the baseline
    min_requests: int = 50  # of the canary, before a measurement can succeed
    failure_limit: int = 2  # failed measurements without a successful one in between, before the rollback
    on_no_data: OnNoData = "probe"
    example: str = ""  # request body of probes as JSON; default: zeros, by the metadata of the model
    on_inconclusive: OnInconclusive = "pause"
    inconclusive_limit: int = 120  # consecutive, after the bake, before on_inconclusive applies
    deadline_s: float = 3600.0
    auto_promote: bool = True
    dry_run_checks: bool = False  # measured and shown, without effect on the rollout
    keep_stable_s: float = 30.0  # the stable revision keeps its replicas this long after the promotion


def parse_policy(options: Mapping[str, Json]) -> CanaryPolicy:
    """Return the policy, compared with the baseline if it has no checks. Raise UsageError with the key and the fix."""
    values = {key: value for key, value in options.items() if value is not None}
    for key in values:
        if key not in (*KEYS, "manual"):
            hint = suggestion(key, KEYS) or f"; it has {', '.join(KEYS)}"
            raise UsageError(f"{key} is no setting of a canary{hint}")
    fields = {name: read(key, values[key]) for key, (name, read) in _FIELDS.items() if key in values}
    if _boolean("manual", values.get("manual", False)):
        fields["auto_promote"] = False
    checks = _checks(values)
    compare = fields.setdefault("compare", "" if checks else "baseline")
    unbounded = [each.name for each in checks if not compare and each.maximum is None and each.minimum is None]
    if unbounded:
        raise UsageError(f"check {unbounded[0]} has no bound; write {unbounded[0]}<… or add compare baseline")
    return CanaryPolicy(**fields, checks=checks)


def policy_from_annotations(annotations: Mapping[str, str]) -> CanaryPolicy | None:
    """Return the policy of the annotations of a manifest; None without one."""
    text = annotations.get(ANNOTATION_CANARY)
    return None if text is None else parse_policy(parse_block(text))


def parse_block(text: str) -> dict[str, Json]:
    """Return the map of a YAML or JSON text. Raise UsageError."""
    problems = Problems()
    documents = parse(text, "", problems)
    if problems.errors:
        problem = problems.errors[0]
        raise UsageError(f"line {max(problem.location.line, 1)} of it: {problem.message}")
    block = documents[0].plain() if documents else {}
    if not isinstance(block, dict) or len(documents) > 1:
        raise UsageError("must be a map such as {steps: 5,25,50,100, check: p99_ms<300}")
    return block


def _checks(values: Mapping[str, Json]) -> tuple[Check, ...]:
    checks = [parse_check(text) for text in _texts("check", values.get("check", ()))]
    names = [each.name for each in checks]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f"check {name} is given twice; keep one of them")
    promql, maxima, minima = (_pairs(key, values.get(key, ())) for key in ("promql", "max", "min"))
    return (*checks, *promql_checks(promql, maxima, minima))


def _texts(key: str, value: Json) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"{key} is {display(value)}, must be a text or a list of texts")
    return list(texts)


def _pairs(key: str, value: Json) -> list[str]:
    """Return `NAME=…` texts; a manifest may write a map, or a single number as the bound of its only query."""
    if isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [str(value)]
    return _texts(key, value)


def _steps(key: str, value: Json) -> tuple[int, ...]:
    parts = value.replace("%", "").split(",") if isinstance(value, str) else value
    parts = parts if isinstance(parts, list | tuple) else [parts]
    try:
        steps = tuple(int(str(part).strip()) for part in parts)
    except ValueError:
        steps = ()
    rising = all(before < after for before, after in pairwise(steps))
    if not steps or not rising or steps[0] < 1 or steps[-1] != 100 or len(steps) > MAX_STEPS:
        written = display(value) if not isinstance(value, list | tuple) else ",".join(map(str, value))
        must = f"rising percentages that end in 100, at most {MAX_STEPS}, such as 5,25,50,100"
        raise UsageError(f"{key} is {written}, must be {must}")
    return steps


def _duration(key: str, value: Json) -> float:
    duration = value if isinstance(value, int | float) and not isinstance(value, bool) else parse_duration(str(value))
    if duration is None or not math.isfinite(duration) or duration < 0:
        raise UsageError(f"{key} is {display(value)}, must be a duration such as 15s or 2m")
    return float(duration)


def _interval(key: str, value: Json) -> float:
    interval = _duration(key, value)
    if interval <= 0:
        raise UsageError(f"{key} is {display(value)}, must be more than nothing, such as 15s")
    return interval


def _integer(minimum: int) -> Callable[[str, Json], int]:
    def read(key: str, value: Json) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise UsageError(f"{key} is {display(value)}, must be a whole number of at least {minimum}")
        return value

    return read


def _ratio(key: str, value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value < math.inf:
        raise UsageError(f"{key} is {display(value)}, must be a number of at least 1, such as 1.2")
    return float(value)


def _one_of(*values: str) -> Callable[[str, Json], str]:
    def read(key: str, value: Json) -> str:
        if value not in values:
            raise UsageError(f"{key} is {display(value)}, must be {' or '.join(filter(None, values))}")
        return str(value)

    return read


def _boolean(key: str, value: Json) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{key} is {display(value)}, must be true or false")
    return value


# By key of flags and manifests: the field of Policy, and its parser.
_FIELDS: Final[dict[str, tuple[str, Callable[[str, Json], Any]]]] = {
    "steps": ("steps", _steps),
    "bake": ("bake_s", _duration),
    "interval": ("interval_s", _interval),
    "compare": ("compare", _one_of("baseline", "")),
    "ratio": ("ratio", _ratio),
    "min-requests": ("min_requests", _integer(0)),
    "failure-limit": ("failure_limit", _integer(1)),
    "on-no-data": ("on_no_data", _one_of("probe", "pause", "fail", "pass")),
    "example": ("example", parse_example),
    "on-inconclusive": ("on_inconclusive", _one_of("pause", "fail", "pass")),
    "inconclusive-limit": ("inconclusive_limit", _integer(1)),
    "deadline": ("deadline_s", _interval),
    "auto-promote": ("auto_promote", _boolean),
    "keep-stable": ("keep_stable_s", _duration),
    "dry-run-checks": ("dry_run_checks", _boolean),
}
KEYS: Final = (*_FIELDS, "check", "promql", "max", "min")
