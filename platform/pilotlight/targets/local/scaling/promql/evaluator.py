"""PromQL evaluator over the replicas' own metrics, for triggers and canaries without a Prometheus server.

Evaluated are numbers, selectors with matchers, a range and an offset, `sum avg min max count` with by or without, the
functions of FUNCTIONS, arithmetic, comparisons, and `and or unless` with on or ignoring: what the renderer and canaries
use, and common user queries. Ranges and vectors have Prometheus' extrapolation and interpolation. A query beyond that
raises UnsupportedQuery: it needs a Prometheus server.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.prometheus import histograms, promql
from pilotlight.prometheus.promql import Node, kind
from pilotlight.targets.local.scaling.promql import regexes, series
from pilotlight.targets.local.scaling.promql.series import Labels, Selector, SeriesStore

Vector = dict[Labels, float]
Elements = Iterable[tuple[Labels, float | None]]
Points = Sequence[tuple[float, float]]

RANGES: Final = ("rate", "increase", "irate", "avg_over_time", "max_over_time", "min_over_time", "sum_over_time")
FUNCTIONS: Final = (
    *RANGES, "histogram_quantile", "vector", "scalar", "clamp_min", "clamp_max", "clamp", "abs", "ceil", "floor",
)  # fmt: skip
_SETS: Final = ("and", "or", "unless")
_MATCHES: Final = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}
_REDUCE: Final[dict[str, Callable[[list[float]], float]]] = {
    "sum": lambda values: float(sum(values)),
    "avg": lambda values: sum(values) / len(values),
    "min": lambda values: min((n for n in values if not math.isnan(n)), default=math.nan),
    "max": lambda values: max((n for n in values if not math.isnan(n)), default=math.nan),
    "count": lambda values: float(len(values)),
}
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip


class UnsupportedQuery(UsageError):
    """Query that needs a Prometheus server."""

    def __init__(self, query: str, why: str) -> None:
        short = " ".join(query.split())
        short = short if len(short) <= 80 else f"{short[:77]}..."
        super().__init__(f"the query {short} {why}; needs --prometheus ADDRESS", "platformctl up --prometheus ADDRESS")


def supported(query: str) -> str | None:
    """Return why the query cannot be evaluated here, or None."""
    try:
        parse(query)
    except UnsupportedQuery as error:
        return str(error)
    return None


@lru_cache(maxsize=512)
def parse(query: str) -> Node:
    """Return the tree of a query that can be evaluated. Raise UnsupportedQuery."""
    try:
        tree = promql.parse(query)
        selectors(tree)
    except (promql.InvalidQuery, OverflowError) as error:  # of a range of millions of years
        raise UnsupportedQuery(query, f"cannot be read: {error}") from error
    if missing := next(filter(None, map(_missing, promql.nodes(tree))), ""):
        raise UnsupportedQuery(query, f"uses {missing}, which is not supported")
    if kind(tree) == "MatrixSelector":
        raise UnsupportedQuery(query, "has a range that no function uses")
    return tree


def _missing(node: Node) -> str:
    """Return what of this node the evaluator does not have, or an empty string."""
    match kind(node):
        case "Call" if node.func.name not in FUNCTIONS:
            return f"{node.func.name}()"
        case "AggregateExpr" if str(node.op) not in _REDUCE:
            return f"{node.op}()"
        case "BinaryExpr" if str(node.op) not in (*_SETS, *_ARITHMETIC, *_COMPARISONS):
            return str(node.op)
        case "BinaryExpr" if match := re.search(r"(group_left|group_right|fill\w*) \(", str(node.modifier or "")):
            return match[1]
        case "SubqueryExpr":
            return "a subquery"
        case "StringLiteral":
            return "a text"
        case "VectorSelector":
            return _missing_of_selector(node)
    return ""


def _missing_of_selector(node: Node) -> str:
    if not node.name:
        return "a selector without a metric's name"
    if node.at or node.matchers.or_matchers:
        return "@" if node.at else "or between matchers"
    for label, operator, value in selector(node).matchers:
        if "~" in operator and not regexes.is_safe(value):
            return f"{label}{operator}{value}"
    return "a negative offset" if selector(node).offset_s < 0 else ""


def selector(node: Node) -> Selector:
    ranged = kind(node) == "MatrixSelector"
    vector = node.vector_selector if ranged else node
    matchers = tuple((each.name, _MATCHES[str(each.op)], each.value) for each in vector.matchers.matchers)
    offset_s = vector.offset.total_seconds() if vector.offset else 0.0
    return Selector(vector.name, matchers, node.range.total_seconds() if ranged else 0.0, offset_s)


def selectors(tree: Node) -> list[Selector]:
    found = (node for before, node in pairwise([None, *promql.nodes(tree)]) if kind(before) != "MatrixSelector")
    return [selector(node) for node in found if kind(node) in ("VectorSelector", "MatrixSelector")]


class Evaluator(SeriesStore):
    """Stored series of all services, and queries over them."""

    def watch(self, query: str) -> bool:
        """Store the query's metrics from now on; return whether any of them is new."""
        fresh = [self.retain(selector) for selector in selectors(parse(query))]
        return any(fresh)

    def evaluate(self, query: str, now: float) -> float | None:
        """Return one number, None for an empty result. NaN is returned as such (see keda.query_value)."""
        result = self._value(parse(query), now)
        if isinstance(result, float):
            return result
        if len(result) > 1:
            raise UnsupportedQuery(query, f"gives {len(result)} series, must return one number")
        return next(iter(result.values()), None)

    def vector(self, query: str, now: float) -> Vector:
        """Return all elements of the result; a scalar has no labels."""
        return self._vector(parse(query), now)

    def newest(self, query: str) -> float | None:
        """Return the time of the newest sample of the query's metrics; None: there is none."""
        selected = [each for node in selectors(parse(query)) for each in self.select(node)]
        return max((each.points[-1][0] for each in selected if each.points), default=None)

    def _value(self, node: Node, now: float) -> float | Vector:
        match kind(node):
            case "NumberLiteral":
                return float(node.val)
            case "VectorSelector":
                wanted = selector(node)
                present = ((each, series.at(each, now - wanted.offset_s)) for each in self.select(wanted))
                return {each.labels: value for each, value in present if value is not None}
            case "Call":
                return self._call(node, now)
            case "AggregateExpr":
                return aggregated(node, self._vector(node.expr, now))
            case "UnaryExpr":
                value = self._value(node.expr, now)
                return {key: -n for key, n in value.items()} if isinstance(value, dict) else -value
        return _binary(node, self._value(node.lhs, now), self._value(node.rhs, now))

    def _vector(self, node: Node, now: float) -> Vector:
        value = self._value(node, now)
        return {(): value} if isinstance(value, float) else value

    def _call(self, node: Node, now: float) -> float | Vector:
        name, first = node.func.name, node.args[0]
        if name in RANGES:
            ranged = selector(first)
            end = now - ranged.offset_s
            windows = ((s.labels, series.within(s, end, ranged.range_s)) for s in self.select(ranged))
            values = ((labels, over_range(name, points, ranged.range_s, end)) for labels, points in windows)
            return {labels: value for labels, value in values if value is not None}
        if name == "histogram_quantile":
            return quantiles(self._scalar(first, now), self._vector(node.args[1], now))
        if name in ("vector", "scalar"):
            return {(): self._scalar(first, now)} if name == "vector" else self._scalar(first, now)
        limits = [self._scalar(argument, now) for argument in node.args[1:]]
        return {labels: by_element(name, value, limits) for labels, value in self._vector(first, now).items()}

    def _scalar(self, node: Node, now: float) -> float:
        """Prometheus' scalar(): the single element, NaN for none or several."""
        value = self._value(node, now)
        if isinstance(value, float):
            return value
        return next(iter(value.values())) if len(value) == 1 else math.nan


def _binary(node: Node, left: float | Vector, right: float | Vector) -> float | Vector:
    operator = str(node.op)
    key = _grouping(node.modifier.matching if node.modifier else None) or (lambda labels: labels)
    if isinstance(left, dict):
        if not isinstance(right, dict):
            return _present((labels, _applied(node, a, right, a)) for labels, a in left.items())
        if operator in _SETS:
            return _sets(operator, key, left, right)
        others = {key(labels): value for labels, value in right.items()}
        pairs = ((labels, value, others.get(key(labels))) for labels, value in left.items())
        return _present((labels, _applied(node, a, b, a)) for labels, a, b in pairs if b is not None)
    if isinstance(right, dict):
        return _present((labels, _applied(node, left, b, b)) for labels, b in right.items())
    return _ARITHMETIC[operator](left, right) if operator in _ARITHMETIC else float(_COMPARISONS[operator](left, right))


def _sets(operator: str, key: Callable[[Labels], Labels], left: Vector, right: Vector) -> Vector:
    left_keys, right_keys = set(map(key, left)), set(map(key, right))
    if operator == "or":
        return {**left, **{labels: value for labels, value in right.items() if key(labels) not in left_keys}}
    return {labels: value for labels, value in left.items() if (key(labels) in right_keys) == (operator == "and")}


def _applied(node: Node, a: float, b: float, element: float) -> float | None:
    """Apply an operator; a comparison filters: it returns the vector's own value or None."""
    operator = str(node.op)
    if operator in _ARITHMETIC:
        return _ARITHMETIC[operator](a, b)
    holds = _COMPARISONS[operator](a, b)
    return float(holds) if node.modifier and node.modifier.return_bool else element if holds else None


def _present(elements: Elements) -> Vector:
    return {labels: value for labels, value in elements if value is not None}


def _grouping(modifier: Node) -> Callable[[Labels], Labels] | None:
    """Return what `on`, `ignoring`, `by` or `without` leave of labels; None without any of these."""
    if modifier is None:
        return None
    names, listed = frozenset(modifier.labels), str(modifier.type).endswith((".Include", ".By"))
    return lambda labels: tuple((name, value) for name, value in labels if (name in names) == listed)


def aggregated(node: Node, vector: Vector) -> Vector:
    key = _grouping(node.modifier) or (lambda labels: ())
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(key(labels), []).append(value)
    return {labels: _REDUCE[str(node.op)](values) for labels, values in groups.items()}


def over_range(name: str, points: Points, range_s: float, now: float) -> float | None:
    """Return the function's value over the range; None with too few samples."""
    if name.endswith("_over_time"):
        return _REDUCE[name.removesuffix("_over_time")]([value for _, value in points]) if points else None
    if len(points) < 2:
        return None
    if name == "irate":
        (before, low), (after, high) = points[-2], points[-1]
        return (high - low if high >= low else high) / (after - before)
    total = increase(points, range_s, now)
    return total / range_s if name == "rate" else total


def increase(points: Points, range_s: float, now: float) -> float:
    """Return a counter's increase over the range, extrapolated to its ends as Prometheus does."""
    (first_at, first), (last_at, last) = points[0], points[-1]
    resets = sum(before for (_, before), (_, after) in pairwise(points) if after < before)  # a fall is a restart at 0
    total = last - first + resets
    sampled = last_at - first_at
    between = sampled / (len(points) - 1)
    before_s, after_s = first_at - (now - range_s), now - last_at
    # A gap of more than 1.1 scrape intervals: the series probably began or ended here, so only half an interval counts.
    if before_s >= between * 1.1:
        before_s = between / 2
    if total > 0 and first >= 0:
        before_s = min(before_s, sampled * first / total)  # never extrapolate below 0
    if after_s >= between * 1.1:
        after_s = between / 2
    return total * (sampled + before_s + after_s) / sampled


def quantiles(quantile: float, vector: Vector) -> Vector:
    """histogram_quantile(): buckets are grouped by all labels but `le`."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in vector.items():
        bound = dict(labels).get("le")
        if bound is not None:
            rest = tuple((name, text) for name, text in labels if name != "le")
            groups.setdefault(rest, []).append((histograms.upper_bound(bound), value))
    return {labels: _quantile(quantile, sorted(buckets)) for labels, buckets in groups.items()}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    if math.isnan(quantile) or len(buckets) < 2 or buckets[-1][0] != math.inf:
        return math.nan
    if not 0 <= quantile <= 1:
        return -math.inf if quantile < 0 else math.inf
    bounds, counts = zip(*buckets, strict=True)
    if not quantile and not counts[0]:
        return math.nan  # 0 / 0 in Prometheus
    rising = accumulate(counts, lambda below, count: max(count, below))  # sums of different scrapes may fall
    value = histograms.quantile(tuple(zip(bounds, rising, strict=True)), quantile)
    return math.nan if value is None else value


def divided(a: float, b: float) -> float:
    """Divide as IEEE 754: 0 / 0 is NaN, anything else by 0 infinite."""
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def by_element(name: str, value: float, limits: Sequence[float]) -> float:
    if name == "clamp_min":
        return max(value, limits[0])
    if name == "clamp_max":
        return min(value, limits[0])
    if name == "clamp":
        return min(max(value, limits[0]), limits[1])
    if name == "abs" or not math.isfinite(value):
        return abs(value) if name == "abs" else value
    return float(math.ceil(value) if name == "ceil" else math.floor(value))


_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": divided, "%": lambda a, b: math.fmod(a, b) if b and math.isfinite(a) else math.nan,
}  # fmt: skip
