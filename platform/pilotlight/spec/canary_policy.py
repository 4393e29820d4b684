"""Canary policy of a service, its checks and the requests of its probes.

Parsed from the flags of `canary start`, or from the annotation that spec/annotation_checks.py makes of `spec.canary`.
Both have the same keys.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.errors import UsageError
from pilotlight.k8s.names import ANNOTATION_CANARY
from pilotlight.k8s.quantities import parse_duration
from pilotlight.prometheus.metric_queries import syntax_problem
from pilotlight.spec.field_types import display
from pilotlight.spec.problems import Problems
from pilotlight.spec.yaml_nodes import parse
from pilotlight.wire.messages import suggestion

Json = Any
OnNoData = Literal["probe", "pause", "fail", "pass"]
OnInconclusive = Literal["pause", "fail", "pass"]
MAX_STEPS: Final = 8
MAX_DURATION_S: Final = 365 * 86400.0
MAX_ZEROS: Final = 1_000_000  # elements of an input
MAX_EXAMPLE_BYTES: Final = 65_536  # it is stored with the canary in an annotation
# The first known key of an example request determines its protocol and path.
PATH_BY_KEY: Final = {
    "inputs": "/v2/models/{model}/infer",
    "instances": "/v1/models/{model}:predict",
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
}
# Built-in metrics and their descriptions.
METRICS: Final = {
    "p50_ms": "the median latency",
    "p90_ms": "the 90th percentile of the latency",
    "p95_ms": "the 95th percentile of the latency",
    "p99_ms": "the 99th percentile of the latency",
    "mean_ms": "the mean latency",
    "error_rate": "the ratio of requests with a 5xx response",
    "rps": "requests per second",
}
QUANTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}
COMPARED_METRICS: Final = ("error_rate", "p50_ms", "p99_ms")  # always compared with the baseline
PLACEHOLDERS: Final = ("revision", "stable", "namespace", "service", "window")
MAX_QUERY_LENGTH: Final = 2000  # characters
MAX_LATENCY_MS: Final = LATENCY_BUCKETS[-1] * 1000
_CHECK: Final = re.compile(r"([\w.-]+)\s*(?:(<=|>=|<|>|==|=)\s*(\S.*))?")
_AMOUNT: Final = re.compile(r"([+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|ms|s|/s)?")
_SCALES: Final = {"ms": {"": 1.0, "ms": 1.0, "s": 1000.0}, "rate": {"": 1.0, "%": 0.01}, "rps": {"": 1.0, "/s": 1.0}}
_NAME: Final = re.compile(r"[A-Za-z][\w-]{0,39}")
_PIECE: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`[^`]*`|#[^\n]*|[^"\'`#]+|.', re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w*)\s*\}\}")


class Check(Struct, frozen=True, omit_defaults=True):
    """Metric of METRICS or of a query, with bounds. `_ms` in its name: milliseconds; rates are fractions of 1."""

    name: str
    query: str = ""
    maximum: float | None = None
    minimum: float | None = None


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
    example: str = ""  # request body of probes as JSON; default: the example of the model, else zeros
    on_inconclusive: OnInconclusive = "pause"
    inconclusive_limit: int = 120  # consecutive, after the bake, before on_inconclusive applies
    deadline_s: float = 3600.0
    auto_promote: bool = True
    dry_run_checks: bool = False  # measured and shown, without effect on the rollout
    keep_stable_s: float = 30.0  # the stable revision keeps its replicas this long after the promotion


def parse_check(text: str) -> Check:
    """Parse `p99_ms<300`, `error_rate<1%`, `mean_ms<=20ms`, `rps>5`; `p99_ms` alone is compared and has no bound."""
    matched = _CHECK.fullmatch(text.strip())
    if matched is None or matched[2] in ("==", "="):
        raise UsageError(f'the check "{text}" cannot be read; write it as p99_ms<300 or error_rate<1%')
    name, operator, amount = matched[1], matched[2], matched[3]
    if name not in METRICS:
        with_unit = f"; did you mean {name}_ms?" if f"{name}_ms" in METRICS else ""
        hint = with_unit or suggestion(name, tuple(METRICS)) or f"; known: {', '.join(METRICS)}"
        raise UsageError(f'the check "{text}" uses {name}, which is not a metric{hint}')
    if operator is None:
        return Check(name)
    bound = _bound(text, name, amount)
    return Check(name, maximum=bound) if operator[0] == "<" else Check(name, minimum=bound)


def _bound(text: str, name: str, amount: str) -> float:
    kind = "ms" if name.endswith("_ms") else "rate" if name == "error_rate" else "rps"
    scales, matched = _SCALES[kind], _AMOUNT.fullmatch(amount)
    if matched is None or (matched[2] or "") not in scales:
        must = f"must be a number, with {' or '.join(filter(None, scales))} behind it or nothing"
        raise UsageError(f'the check "{text}" has the bound {amount}, {must}')
    bound = float(matched[1]) * scales[matched[2] or ""]
    if kind == "rate" and bound > 1:
        raise UsageError(f'the check "{text}" has a rate above 1; write {float(matched[1]):g}% for percent')
    if name in QUANTILES and bound > MAX_LATENCY_MS:
        message = f'the check "{text}" is beyond {MAX_LATENCY_MS:g} ms, the highest measurable latency'
        raise UsageError(message)
    return bound


def promql_checks(queries: Sequence[str], maxima: Sequence[str], minima: Sequence[str]) -> tuple[Check, ...]:
    """Parse `NAME=QUERY` with bounds `NAME=0.5`; each query needs one. The bound of a single query needs no name."""
    checks: dict[str, Check] = {}
    for text in queries:
        name, query = _pair("promql", text, "NAME=QUERY")
        if not _NAME.fullmatch(name) or name in METRICS or name in checks:
            why = "is a built-in metric" if name in METRICS else "is set twice" if name in checks else "is not a name"
            raise UsageError(f"promql {name} {why}; choose another, of letters, digits, - and _")
        check_query(name, query)
        checks[name] = Check(name, query)
    for key, bounds in (("max", maxima), ("min", minima)):
        for name, bound in _bounds(key, bounds, checks):
            checks[name] = replace(checks[name], **{f"{key}imum": bound})
    for check in checks.values():
        if check.maximum is None and check.minimum is None:
            raise UsageError(f"promql {check.name} has no bound; add max {check.name}=… or min {check.name}=…")
    return tuple(checks.values())


def _bounds(key: str, bounds: Sequence[str], checks: Mapping[str, Check]) -> Iterator[tuple[str, float]]:
    for text in bounds:
        unnamed = "=" not in text and len(checks) == 1
        name, amount = _pair(key, f"{next(iter(checks))}={text}" if unnamed else text, "NAME=NUMBER")
        if name in METRICS:
            check = f"{name}{'<>'[key == 'min']}{amount}"
            raise UsageError(f"{key} {text} is a built-in metric; write the check {check}")
        if name not in checks:
            hint = suggestion(name, tuple(checks)) or f"; add promql {name}=QUERY"
            raise UsageError(f"{key} {text} has no query{hint}")
        try:
            bound = float(amount)
        except ValueError:
            bound = math.nan
        if not math.isfinite(bound):
            raise UsageError(f"{key} {text} must end in a number, such as {name}=0.5")
        yield name, bound


def _pair(key: str, text: str, form: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not rest.strip():
        raise UsageError(f'{key} "{text}" cannot be read; write it as {form}')
    return name.strip(), rest.strip()


def check_query(name: str, query: str) -> None:
    """Raise UsageError for a query whose placeholders cannot be filled safely; Prometheus checks the rest."""
    if len(query) > MAX_QUERY_LENGTH:
        problem = f"has {len(query)} characters, and {MAX_QUERY_LENGTH} characters is the limit"
        raise UsageError(f"promql {name} {problem}; make a recording rule of it")
    if wrong := syntax_problem(query):
        raise UsageError(f"promql {name} {wrong}")
    fill_placeholders(query, dict.fromkeys(PLACEHOLDERS, "1s"), name)


def fill_placeholders(query: str, values: Mapping[str, str], name: str = "") -> str:
    """Return the query with its placeholders replaced; names only within quotes and escaped, against injection."""
    return "".join(_filled(piece, values, name) for piece in _PIECE.findall(query))


def _filled(piece: str, values: Mapping[str, str], name: str) -> str:
    quote = piece[0] if piece[0] in "\"'`" and len(piece) > 1 else ""

    def replacement(matched: re.Match[str]) -> str:
        placeholder = matched[1]
        if placeholder not in PLACEHOLDERS:
            known = ", ".join(f"{{{{{each}}}}}" for each in PLACEHOLDERS)
            raise UsageError(f"promql {name} has {matched[0]}, which is unknown; known: {known}")
        if not quote and placeholder != "window":
            raise UsageError(f'promql {name} has {matched[0]} outside of quotes; write label="{matched[0]}"')
        # Raw strings in backticks have no escapes, so backticks are dropped; no name has one.
        value = values[placeholder]
        if quote == "`":
            return value.replace("`", "")
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace(quote, f"\\{quote}") if quote else value

    return piece if piece.startswith("#") else _PLACEHOLDER.sub(replacement, piece)


def format_value(name: str, value: float | None) -> str:
    """Return a value with its unit: `312 ms`, `1.25 %`."""
    if value is None or math.isnan(value):
        return "nothing"
    if name.endswith("_ms"):
        return f"{value:.4g} ms"
    return f"{value * 100:.3g} %" if name == "error_rate" else f"{value:.4g}/s" if name == "rps" else f"{value:.6g}"


def parse_example(key: str, value: Json) -> str:
    """Return the JSON of a request body, which is a map or its JSON. Raise UsageError."""
    body = value
    if isinstance(value, str):
        try:
            body = json.loads(value)
        except ValueError as error:
            raise UsageError(f"{key} is not JSON: {error}") from None
    if not isinstance(body, Mapping) or not PATH_BY_KEY.keys() & body.keys():
        raise UsageError(
            f"{key} is {display(value)}, must be the body of a request, with one of {', '.join(PATH_BY_KEY)}"
        )
    text = json.dumps(body)
    if len(text) > MAX_EXAMPLE_BYTES:
        raise UsageError(f"{key} has {len(text)} bytes, must have {MAX_EXAMPLE_BYTES} at most")
    return text


def with_example(policy: CanaryPolicy, example: Mapping[str, Json]) -> CanaryPolicy:
    """Return the policy with the model's example as the body of its probes, unless it has its own."""
    return replace(policy, example=json.dumps(example)) if example and not policy.example else policy


def request_path(body: Mapping[str, Json], model: str) -> str:
    known = next(key for key in PATH_BY_KEY if key in body)
    return PATH_BY_KEY[known].format(model=quote(model, safe=""))


def zero_request(metadata: Mapping[str, Json]) -> dict[str, Json]:
    """Return a V2 request of zeros and empty strings, with size 1 for variable dimensions.

    Raise UsageError for one that is too large: a model may claim any shape.
    """
    inputs = []
    for tensor in metadata.get("inputs") or ():
        shape = [max(1, int(size)) for size in tensor.get("shape") or (1,)]
        if math.prod(shape) > MAX_ZEROS:
            raise UsageError(f"input {tensor['name']} has more than {MAX_ZEROS} elements; give an example")
        value: Json = {"BYTES": "", "BOOL": False}.get(str(tensor["datatype"]), 0)
        data = [value] * math.prod(shape)
        inputs.append({"name": tensor["name"], "datatype": str(tensor["datatype"]), "shape": shape, "data": data})
    return {"inputs": inputs}


def parse_policy(options: Mapping[str, Json]) -> CanaryPolicy:
    """Return the policy, compared with the baseline if it has no checks. Raise UsageError with the key and the fix."""
    values = {key: value for key, value in options.items() if value is not None}
    for key in values:
        if key not in (*KEYS, "manual"):
            hint = suggestion(key, KEYS) or f"; it has {', '.join(KEYS)}"
            raise UsageError(f"{key} is not a canary setting{hint}")
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
            raise UsageError(f"check {name} is set twice; keep one of them")
    return (*checks, *promql_checks(*(_pairs(key, values.get(key, ())) for key in ("promql", "max", "min"))))


def _texts(key: str, value: Json) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"{key} is {display(value)}, must be a string or a list of strings")
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
    if duration is None or not 0 <= duration <= MAX_DURATION_S:
        raise UsageError(f"{key} is {display(value)}, must be a duration such as 15s or 2m, of at most a year")
    return float(duration)


def _interval(key: str, value: Json) -> float:
    interval = _duration(key, value)
    if interval <= 0:
        raise UsageError(f"{key} is {display(value)}, must be greater than zero, such as 15s")
    return interval


def _checked(valid: Callable[[Json], bool], must: str) -> Callable[[str, Json], Any]:
    """Return the reader of a value that is taken as it is written."""

    def read(key: str, value: Json) -> Any:
        if not valid(value):
            raise UsageError(f"{key} is {display(value)}, must be {must}")
        return value

    return read


def _integer(minimum: int) -> Callable[[str, Json], Any]:
    return _checked(lambda value: type(value) is int and value >= minimum, f"a whole number of at least {minimum}")


def _one_of(*values: str) -> Callable[[str, Json], Any]:
    return _checked(lambda value: value in values, " or ".join(filter(None, values)))


_boolean: Final = _checked(lambda value: isinstance(value, bool), "true or false")
_ratio: Final = _checked(
    lambda value: type(value) in (int, float) and 1 <= value < math.inf, "a number of at least 1, such as 1.2"
)
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
