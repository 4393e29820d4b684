"""PromQL evaluator over the replicas' own metrics, for triggers and canaries without a Prometheus server.

    evaluator.watch(query)               store the query's metrics from now on
    evaluator.ingest(text, labels, now)  a replica's /metrics, every few seconds
    evaluator.evaluate(query, now)       one number; None for an empty result
    evaluator.vector(query, now)         all elements of the result with their labels

A query beyond promql_syntax.py raises UnsupportedQuery: it needs a Prometheus server.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from pilotlight.targets.local.scaling import promql_functions as functions
from pilotlight.targets.local.scaling import promql_syntax as syntax
from pilotlight.targets.local.scaling import series
from pilotlight.targets.local.scaling.promql_functions import Labels, Vector
from pilotlight.targets.local.scaling.promql_syntax import UnsupportedQuery

__all__ = ["Evaluator", "UnsupportedQuery", "supported"]

_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": functions.divided, "%": lambda a, b: math.fmod(a, b) if b else math.nan,
}  # fmt: skip
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def supported(query: str) -> str | None:
    """Return why the query cannot be evaluated here, or None."""
    try:
        syntax.parse(query)
    except UnsupportedQuery as error:
        return str(error)
    return None


class Evaluator:
    """Stored series of all services, and queries over them."""

    def __init__(self) -> None:
        self._store = series.SeriesStore()

    def watch(self, query: str) -> bool:
        """Store the query's metrics from now on; return whether any of them is new."""
        fresh = [self._store.watch(selector) for selector in syntax.selectors(syntax.parse(query))]
        return any(fresh)

    def ingest(self, text: str, labels: Mapping[str, str], now: float) -> None:
        """Store a replica's exposition; `labels` identify it and must include those that queries select by."""
        self._store.ingest(text, labels, now)

    def record(self, name: str, labels: Mapping[str, str], value: float, now: float) -> None:
        """Store a sample that does not come from a replica."""
        self._store.record(name, labels, value, now)

    def mark_down(self, labels: Mapping[str, str], now: float) -> None:
        """Record a failed scrape of a replica."""
        self._store.mark_down(labels, now)

    def mark_ended(self, labels: Mapping[str, str]) -> None:
        """Mark the series of an ended replica as stale."""
        self._store.mark_ended(labels)

    def __len__(self) -> int:
        return len(self._store)

    def evaluate(self, query: str, now: float) -> float | None:
        """Return one number, None for an empty result. NaN is returned as such (see triggers.query_value)."""
        result = self._value(syntax.parse(query), now)
        if isinstance(result, float):
            return result
        if len(result) > 1:
            raise UnsupportedQuery(query, f"gives {len(result)} series where one number is needed")
        return next(iter(result.values()), None)

    def vector(self, query: str, now: float) -> Vector:
        """Return all elements of the result; a scalar has no labels."""
        return self._vector(syntax.parse(query), now)

    def newest(self, query: str) -> float | None:
        """Return the time of the newest sample of the query's metrics; None: there is none."""
        selected = [each for node in syntax.selectors(syntax.parse(query)) for each in self._store.select(node)]
        return max((each.points[-1][0] for each in selected if each.points), default=None)

    def _value(self, node: syntax.Node, now: float) -> float | Vector:
        if isinstance(node, syntax.Number):
            return node.value
        if isinstance(node, syntax.Selector):
            present = ((each, series.at(each, now - node.offset_s)) for each in self._store.select(node))
            return {each.labels: value for each, value in present if value is not None}
        if isinstance(node, syntax.Call):
            return self._call(node, now)
        if isinstance(node, syntax.Aggregation):
            return functions.aggregated(node, self._vector(node.of, now))
        return _binary(node, self._value(node.left, now), self._value(node.right, now))

    def _vector(self, node: syntax.Node, now: float) -> Vector:
        value = self._value(node, now)
        return {(): value} if isinstance(value, float) else value

    def _call(self, node: syntax.Call, now: float) -> float | Vector:
        first = node.arguments[0]
        if node.name in syntax.RANGES and isinstance(first, syntax.Selector):
            end = now - first.offset_s
            windows = ((s.labels, series.within(s, end, first.range_s)) for s in self._store.select(first))
            ranged = (
                (labels, functions.over_range(node.name, points, first.range_s, end)) for labels, points in windows
            )
            return {labels: value for labels, value in ranged if value is not None}
        if node.name == "histogram_quantile":
            return functions.quantiles(self._scalar(first, now), self._vector(node.arguments[1], now))
        if node.name in ("vector", "scalar"):
            return {(): self._scalar(first, now)} if node.name == "vector" else self._scalar(first, now)
        limits = [self._scalar(argument, now) for argument in node.arguments[1:]]
        return {
            labels: functions.by_element(node.name, value, limits) for labels, value in self._vector(first, now).items()
        }

    def _scalar(self, node: syntax.Node, now: float) -> float:
        """Prometheus' scalar(): the single element, NaN for none or several."""
        value = self._value(node, now)
        if isinstance(value, float):
            return value
        return next(iter(value.values())) if len(value) == 1 else math.nan


def _binary(node: syntax.Binary, left: float | Vector, right: float | Vector) -> float | Vector:
    if node.operator in ("and", "or", "unless"):
        return _sets(node, left if isinstance(left, dict) else {}, right if isinstance(right, dict) else {})
    if isinstance(left, dict) and isinstance(right, dict):
        others = {_key(node, labels): value for labels, value in right.items()}
        pairs = ((labels, value, others.get(_key(node, labels))) for labels, value in left.items())
        return _present((labels, _applied(node, a, b, a)) for labels, a, b in pairs if b is not None)
    if isinstance(left, dict):
        return _present((labels, _applied(node, a, _number(right), a)) for labels, a in left.items())
    if isinstance(right, dict):
        return _present((labels, _applied(node, left, b, b)) for labels, b in right.items())
    if node.operator in _ARITHMETIC:
        return _ARITHMETIC[node.operator](left, right)
    return float(_COMPARISONS[node.operator](left, right))


def _number(value: float | Vector) -> float:
    assert isinstance(value, float)
    return value


def _applied(node: syntax.Binary, a: float, b: float, element: float) -> float | None:
    """Apply an operator; a comparison filters: it returns the vector's own value or None."""
    if node.operator in _ARITHMETIC:
        return _ARITHMETIC[node.operator](a, b)
    holds = _COMPARISONS[node.operator](a, b)
    return float(holds) if node.as_bool else element if holds else None


def _present(elements: "functions.Elements") -> Vector:
    return {labels: value for labels, value in elements if value is not None}


def _key(node: syntax.Binary, labels: Labels) -> Labels:
    """Return the labels by which elements of both sides match."""
    if node.labels is None:
        return labels
    return tuple((name, value) for name, value in labels if (name in node.labels) != node.ignoring)


def _sets(node: syntax.Binary, left: Vector, right: Vector) -> Vector:
    left_keys, right_keys = {_key(node, labels) for labels in left}, {_key(node, labels) for labels in right}
    if node.operator == "or":
        return {**left, **{labels: value for labels, value in right.items() if _key(node, labels) not in left_keys}}
    both = node.operator == "and"
    return {labels: value for labels, value in left.items() if (_key(node, labels) in right_keys) == both}
