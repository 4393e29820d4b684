"""PromQL evaluator over the replicas' own metrics, for triggers and canaries without a Prometheus server.

Ranges and vectors have Prometheus' extrapolation and interpolation. A query beyond the parser's subset raises
UnsupportedQuery: it needs a Prometheus server.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final

from pilotlight.prometheus import histograms
from pilotlight.targets.local.scaling.promql import parser, series
from pilotlight.targets.local.scaling.promql.parser import Aggregation, UnsupportedQuery
from pilotlight.targets.local.scaling.promql.series import Labels, SeriesStore

Vector = dict[Labels, float]
Elements = Iterable[tuple[Labels, float | None]]
Points = Sequence[tuple[float, float]]

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


def supported(query: str) -> str | None:
    """Return why the query cannot be evaluated here, or None."""
    try:
        parser.parse(query)
    except UnsupportedQuery as error:
        return str(error)
    return None


class Evaluator(SeriesStore):
    """Stored series of all services, and queries over them."""

    def watch(self, query: str) -> bool:
        """Store the query's metrics from now on; return whether any of them is new."""
        fresh = [self.retain(selector) for selector in parser.selectors(parser.parse(query))]
        return any(fresh)

    def evaluate(self, query: str, now: float) -> float | None:
        """Return one number, None for an empty result. NaN is returned as such (see keda.query_value)."""
        result = self._value(parser.parse(query), now)
        if isinstance(result, float):
            return result
        if len(result) > 1:
            raise UnsupportedQuery(query, f"gives {len(result)} series where one number is needed")
        return next(iter(result.values()), None)

    def vector(self, query: str, now: float) -> Vector:
        """Return all elements of the result; a scalar has no labels."""
        return self._vector(parser.parse(query), now)

    def newest(self, query: str) -> float | None:
        """Return the time of the newest sample of the query's metrics; None: there is none."""
        selected = [each for node in parser.selectors(parser.parse(query)) for each in self.select(node)]
        return max((each.points[-1][0] for each in selected if each.points), default=None)

    def _value(self, node: parser.Node, now: float) -> float | Vector:
        if isinstance(node, parser.Number):
            return node.value
        if isinstance(node, parser.Selector):
            present = ((each, series.at(each, now - node.offset_s)) for each in self.select(node))
            return {each.labels: value for each, value in present if value is not None}
        if isinstance(node, parser.Call):
            return self._call(node, now)
        if isinstance(node, parser.Aggregation):
            return aggregated(node, self._vector(node.of, now))
        return _binary(node, self._value(node.left, now), self._value(node.right, now))

    def _vector(self, node: parser.Node, now: float) -> Vector:
        value = self._value(node, now)
        return {(): value} if isinstance(value, float) else value

    def _call(self, node: parser.Call, now: float) -> float | Vector:
        first = node.arguments[0]
        if node.name in parser.RANGES and isinstance(first, parser.Selector):
            end = now - first.offset_s
            windows = ((s.labels, series.within(s, end, first.range_s)) for s in self.select(first))
            ranged = ((labels, over_range(node.name, points, first.range_s, end)) for labels, points in windows)
            return {labels: value for labels, value in ranged if value is not None}
        if node.name == "histogram_quantile":
            return quantiles(self._scalar(first, now), self._vector(node.arguments[1], now))
        if node.name in ("vector", "scalar"):
            return {(): self._scalar(first, now)} if node.name == "vector" else self._scalar(first, now)
        limits = [self._scalar(argument, now) for argument in node.arguments[1:]]
        return {labels: by_element(node.name, value, limits) for labels, value in self._vector(first, now).items()}

    def _scalar(self, node: parser.Node, now: float) -> float:
        """Prometheus' scalar(): the single element, NaN for none or several."""
        value = self._value(node, now)
        if isinstance(value, float):
            return value
        return next(iter(value.values())) if len(value) == 1 else math.nan


def _binary(node: parser.Binary, left: float | Vector, right: float | Vector) -> float | Vector:
    if node.operator in ("and", "or", "unless"):
        return _sets(node, left if isinstance(left, dict) else {}, right if isinstance(right, dict) else {})
    if isinstance(left, dict):
        if not isinstance(right, dict):
            return _present((labels, _applied(node, a, right, a)) for labels, a in left.items())
        others = {_key(node, labels): value for labels, value in right.items()}
        pairs = ((labels, value, others.get(_key(node, labels))) for labels, value in left.items())
        return _present((labels, _applied(node, a, b, a)) for labels, a, b in pairs if b is not None)
    if isinstance(right, dict):
        return _present((labels, _applied(node, left, b, b)) for labels, b in right.items())
    if node.operator in _ARITHMETIC:
        return _ARITHMETIC[node.operator](left, right)
    return float(_COMPARISONS[node.operator](left, right))


def _sets(node: parser.Binary, left: Vector, right: Vector) -> Vector:
    left_keys, right_keys = {_key(node, labels) for labels in left}, {_key(node, labels) for labels in right}
    if node.operator == "or":
        return {**left, **{labels: value for labels, value in right.items() if _key(node, labels) not in left_keys}}
    both = node.operator == "and"
    return {labels: value for labels, value in left.items() if (_key(node, labels) in right_keys) == both}


def _applied(node: parser.Binary, a: float, b: float, element: float) -> float | None:
    """Apply an operator; a comparison filters: it returns the vector's own value or None."""
    if node.operator in _ARITHMETIC:
        return _ARITHMETIC[node.operator](a, b)
    holds = _COMPARISONS[node.operator](a, b)
    return float(holds) if node.as_bool else element if holds else None


def _present(elements: Elements) -> Vector:
    return {labels: value for labels, value in elements if value is not None}


def _key(node: parser.Binary, labels: Labels) -> Labels:
    """Return the labels by which elements of both sides match."""
    if node.labels is None:
        return labels
    return tuple((name, value) for name, value in labels if (name in node.labels) != node.ignoring)


def aggregated(node: Aggregation, vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        key = tuple((name, text) for name, text in labels if (name in node.labels) != node.without)
        groups.setdefault(key, []).append(value)
    return {key: _REDUCE[node.name](values) for key, values in groups.items()}


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
    "/": divided, "%": lambda a, b: math.fmod(a, b) if b else math.nan,
}  # fmt: skip
