"""Checks of a policy: `p99_ms<300`, `error_rate<1%`, PromQL queries of users. Parsing, placeholders, display."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.errors import UsageError
from pilotlight.plan.queries import syntax_problem
from pilotlight.spec.types import suggestion

# Built-in metrics and their descriptions.
METRICS: Final = {
    "p50_ms": "the latency that half of the requests stay below",
    "p90_ms": "the latency that 9 of 10 requests stay below",
    "p95_ms": "the latency that 19 of 20 requests stay below",
    "p99_ms": "the latency that 99 of 100 requests stay below",
    "mean_ms": "the mean latency",
    "error_rate": "the share of requests that are answered with 5xx",
    "rps": "requests per second",
}
QUANTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}
COMPARED_METRICS: Final = ("error_rate", "p50_ms", "p99_ms")  # always compared with the baseline
PLACEHOLDERS: Final = ("revision", "stable", "namespace", "service", "window")
MAX_QUERY_LENGTH: Final = 2000  # characters
MAX_LATENCY_MS: Final = LATENCY_BUCKETS[-1] * 1000

_CHECK: Final = re.compile(r"\s*([\w.-]+)\s*(?:(<=|>=|<|>|==|=)\s*(\S.*?))?\s*")
_AMOUNT: Final = re.compile(r"([+]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|ms|s|/s)?")
_SCALES: Final = {"ms": {"": 1.0, "ms": 1.0, "s": 1000.0}, "rate": {"": 1.0, "%": 0.01}, "rps": {"": 1.0, "/s": 1.0}}
_NAME: Final = re.compile(r"[A-Za-z][\w-]{0,39}")
_PIECE: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`[^`]*`|#[^\n]*|[^"\'`#]+|.', re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w*)\s*\}\}")


class Check(Struct, frozen=True, omit_defaults=True):
    """Metric with bounds: of METRICS by its name, or of a query. Milliseconds if the name ends in `_ms`; rates are
    fractions of 1."""

    name: str
    query: str = ""
    maximum: float | None = None
    minimum: float | None = None


def parse_check(text: str) -> Check:
    """Parse `p99_ms<300`, `error_rate<1%`, `mean_ms<=20ms`, `rps>5`; `p99_ms` alone is compared and has no bound."""
    matched = _CHECK.fullmatch(text)
    if matched is None or matched[2] in ("==", "="):
        raise UsageError(f'the check "{text}" cannot be read; write it as p99_ms<300 or error_rate<1%')
    name, operator, amount = matched[1], matched[2], matched[3]
    if name not in METRICS:
        with_unit = f"; did you mean {name}_ms?" if f"{name}_ms" in METRICS else ""
        hint = with_unit or suggestion(name, tuple(METRICS)) or f"; known are {', '.join(METRICS)}"
        raise UsageError(f'the check "{text}" is about {name}, which is not measured{hint}')
    if operator is None:
        return Check(name)
    bound = _bound(text, name, amount)
    return Check(name, maximum=bound) if operator[0] == "<" else Check(name, minimum=bound)


def _bound(text: str, name: str, amount: str) -> float:
    kind = "ms" if name.endswith("_ms") else "rate" if name == "error_rate" else "rps"
    scales, matched = _SCALES[kind], _AMOUNT.fullmatch(amount)
    if matched is None or (matched[2] or "") not in scales:
        units = " or ".join(f"{unit}" for unit in scales if unit)
        raise UsageError(
            f'the check "{text}" has the bound {amount}, must be a number, with {units} behind it or nothing'
        )
    bound = float(matched[1]) * scales[matched[2] or ""]
    if kind == "rate" and bound > 1:
        raise UsageError(f'the check "{text}" asks for a rate above 1; write {float(matched[1]):g}% for percent')
    if name in QUANTILES and bound > MAX_LATENCY_MS:
        raise UsageError(
            f'the check "{text}" is beyond {MAX_LATENCY_MS:g} ms, where latencies are no longer told apart'
        )
    return bound


def promql_checks(queries: Sequence[str], maxima: Sequence[str], minima: Sequence[str]) -> tuple[Check, ...]:
    """Parse `NAME=QUERY` with bounds `NAME=0.5`; each query needs a bound. The bound of a single query needs no
    name."""
    checks: dict[str, Check] = {}
    for text in queries:
        name, query = _pair("promql", text, "NAME=QUERY")
        if not _NAME.fullmatch(name) or name in METRICS or name in checks:
            why = "is one of ours" if name in METRICS else "is given twice" if name in checks else "is no name"
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
            raise UsageError(
                f"{key} {text} is about a figure of ours; write the check {name}{'<>'[key == 'min']}{amount}"
            )
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
        most = f"{MAX_QUERY_LENGTH} characters at most can be kept"
        raise UsageError(f"promql {name} has {len(query)} characters, and {most}; make a recording rule of it")
    if wrong := syntax_problem(query):
        raise UsageError(f"promql {name} {wrong}")
    fill_placeholders(query, dict.fromkeys(PLACEHOLDERS, "1s"), name)


def fill_placeholders(query: str, values: Mapping[str, str], name: str = "") -> str:
    """Return the query with its placeholders replaced; names only within quotes and escaped, against injection."""
    return "".join(_filled(piece, values, name) for piece in _PIECE.findall(query))


def _filled(piece: str, values: Mapping[str, str], name: str) -> str:
    quote = piece[0] if piece[0] in "\"'`" and len(piece) > 1 else ""

    def value(matched: re.Match[str]) -> str:
        placeholder = matched[1]
        if placeholder not in PLACEHOLDERS:
            known = ", ".join(f"{{{{{each}}}}}" for each in PLACEHOLDERS)
            raise UsageError(f"promql {name} has {matched[0]}, which stands for nothing; known are {known}")
        if not quote and placeholder != "window":
            raise UsageError(f'promql {name} has {matched[0]} outside of quotes; write label="{matched[0]}"')
        return _escaped(values[placeholder], quote)

    return piece if piece.startswith("#") else _PLACEHOLDER.sub(value, piece)


def _escaped(value: str, quote: str) -> str:
    """Escape a value for its quotes. Raw strings in backticks have no escapes, so backticks are dropped; no name has
    one."""
    if quote == "`":
        return value.replace("`", "")
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace(quote, f"\\{quote}") if quote else value


def format_value(name: str, value: float | None) -> str:
    """Return a value with its unit: `312 ms`, `1.25 %`."""
    if value is None or math.isnan(value):
        return "nothing"
    if name.endswith("_ms"):
        return f"{value:.4g} ms"
    return f"{value * 100:.3g} %" if name == "error_rate" else f"{value:.4g}/s" if name == "rps" else f"{value:.6g}"
