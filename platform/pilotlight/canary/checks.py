"""Checks as people write them: `p99_ms<300`, `error_rate<1%`, queries of their own. Read for block.py and judge.py."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from pilotlight.canary.model import Check
from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.errors import UsageError
from pilotlight.plan.queries import mistake
from pilotlight.spec.types import suggestion

# What can be asked of a revision by name, and what a person reads about it.
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
COMPARED: Final = ("error_rate", "p50_ms", "p99_ms")  # with the baseline, whatever else is
PLACEHOLDERS: Final = ("revision", "stable", "namespace", "service", "window")
LONGEST_QUERY: Final = 2000  # characters
LONGEST_MS: Final = LATENCY_BUCKETS[-1] * 1000

_CHECK: Final = re.compile(r"\s*([\w.-]+)\s*(?:(<=|>=|<|>|==|=)\s*(\S.*?))?\s*")
_AMOUNT: Final = re.compile(r"([+]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|ms|s|/s)?")
_SCALES: Final = {"ms": {"": 1.0, "ms": 1.0, "s": 1000.0}, "rate": {"": 1.0, "%": 0.01}, "rps": {"": 1.0, "/s": 1.0}}
_NAME: Final = re.compile(r"[A-Za-z][\w-]{0,39}")
_PIECE: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`[^`]*`|#[^\n]*|[^"\'`#]+|.', re.DOTALL)
_PLACE: Final = re.compile(r"\{\{\s*(\w*)\s*\}\}")


def parse_check(text: str) -> Check:
    """`p99_ms<300`, `error_rate<1%`, `mean_ms<=20ms`, `rps>5`; `p99_ms` alone is compared and has no bound."""
    matched = _CHECK.fullmatch(text)
    if matched is None or matched[2] in ("==", "="):
        raise UsageError(f'the check "{text}" cannot be read; write it as p99_ms<300 or error_rate<1%')
    name, operator, amount = matched[1], matched[2], matched[3]
    if name not in METRICS:
        timed = f"; did you mean {name}_ms?" if f"{name}_ms" in METRICS else ""
        near = timed or suggestion(name, tuple(METRICS)) or f"; known are {', '.join(METRICS)}"
        raise UsageError(f'the check "{text}" is about {name}, which is not measured{near}')
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
    if name in QUANTILES and bound > LONGEST_MS:
        raise UsageError(f'the check "{text}" is beyond {LONGEST_MS:g} ms, where latencies are no longer told apart')
    return bound


def own_checks(queries: Sequence[str], maxima: Sequence[str], minima: Sequence[str]) -> tuple[Check, ...]:
    """`NAME=QUERY` with `NAME=0.5` for its bounds; each query needs one, and each bound a query. The bound of the only
    query needs no name."""
    found: dict[str, Check] = {}
    for text in queries:
        name, query = _pair("promql", text, "NAME=QUERY")
        if not _NAME.fullmatch(name) or name in METRICS or name in found:
            why = "is one of ours" if name in METRICS else "is given twice" if name in found else "is no name"
            raise UsageError(f"promql {name} {why}; choose another, of letters, digits, - and _")
        check_query(name, query)
        found[name] = Check(name, query)
    for key, bounds in (("max", maxima), ("min", minima)):
        for name, bound in _bounds(key, bounds, found):
            found[name] = replace(found[name], **{f"{key}imum": bound})
    for check in found.values():
        if check.maximum is None and check.minimum is None:
            raise UsageError(f"promql {check.name} has no bound; add max {check.name}=… or min {check.name}=…")
    return tuple(found.values())


def _bounds(key: str, bounds: Sequence[str], known: Mapping[str, Check]) -> Iterator[tuple[str, float]]:
    for text in bounds:
        alone = "=" not in text and len(known) == 1
        name, amount = _pair(key, f"{next(iter(known))}={text}" if alone else text, "NAME=NUMBER")
        if name in METRICS:
            raise UsageError(
                f"{key} {text} is about a figure of ours; write the check {name}{'<>'[key == 'min']}{amount}"
            )
        if name not in known:
            near = suggestion(name, tuple(known)) or f"; add promql {name}=QUERY"
            raise UsageError(f"{key} {text} has no query{near}")
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
    """Refuses what could not be filled in safely; Prometheus itself checks the rest."""
    if len(query) > LONGEST_QUERY:
        most = f"{LONGEST_QUERY} characters at most can be kept"
        raise UsageError(f"promql {name} has {len(query)} characters, and {most}; make a recording rule of it")
    if wrong := mistake(query):
        raise UsageError(f"promql {name} {wrong}")
    fill(query, dict.fromkeys(PLACEHOLDERS, "1s"), name)


def fill(query: str, values: Mapping[str, str], name: str = "") -> str:
    """The query with its placeholders replaced. Names go into quotes, so that none can be more than a name."""
    return "".join(_filled(piece, values, name) for piece in _PIECE.findall(query))


def _filled(piece: str, values: Mapping[str, str], name: str) -> str:
    quote = piece[0] if piece[0] in "\"'`" and len(piece) > 1 else ""

    def value(matched: re.Match[str]) -> str:
        word = matched[1]
        if word not in PLACEHOLDERS:
            known = ", ".join(f"{{{{{each}}}}}" for each in PLACEHOLDERS)
            raise UsageError(f"promql {name} has {matched[0]}, which stands for nothing; known are {known}")
        if not quote and word != "window":
            raise UsageError(f'promql {name} has {matched[0]} outside of quotes; write label="{matched[0]}"')
        return _escaped(values[word], quote)

    return piece if piece.startswith("#") else _PLACE.sub(value, piece)


def _escaped(value: str, quote: str) -> str:
    """A raw text between backticks has no escapes, so a backtick is left out there; no name has one."""
    if quote == "`":
        return value.replace("`", "")
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace(quote, f"\\{quote}") if quote else value


def figure(name: str, value: float | None) -> str:
    """A value as people read it: `312 ms`, `1.25 %`."""
    if value is None or math.isnan(value):
        return "nothing"
    if name.endswith("_ms"):
        return f"{value:.4g} ms"
    return f"{value * 100:.3g} %" if name == "error_rate" else f"{value:.4g}/s" if name == "rps" else f"{value:.6g}"


def shown(check: Check) -> str:
    """The check in one line: `p99_ms<300`."""
    parts = [f"{check.name}<{check.maximum:g}"] if check.maximum is not None else []
    parts += [f"{check.name}>{check.minimum:g}"] if check.minimum is not None else []
    return " and ".join(parts) or check.name
