"""Answers the Prometheus triggers of services that run here from their replicas' own metrics, as Prometheus would.

    evaluator.watch(query)               when a service is applied: its metrics are kept from then on
    evaluator.ingest(text, labels, now)  each replica's /metrics, every few seconds
    evaluator.evaluate(query, now)       one number; None for an empty result
    evaluator.vector(query, now)         every element of the result with its labels

A query beyond promql_syntax.py raises UnsupportedQuery: a real Prometheus answers it (prometheus.py).
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
    """Why the query cannot be answered here, or None."""
    try:
        syntax.parse(query)
    except UnsupportedQuery as wrong:
        return str(wrong)
    return None


class Evaluator:
    """The metrics of all services, and the answers from them."""

    def __init__(self) -> None:
        self._store = series.SeriesStore()

    def watch(self, query: str) -> bool:
        """Whether any of its metrics was not kept until now."""
        fresh = [self._store.watch(selector) for selector in syntax.selectors(syntax.parse(query))]
        return any(fresh)

    def ingest(self, text: str, labels: Mapping[str, str], now: float) -> None:
        """`labels` tell the replica from all others, and must hold those that queries choose by."""
        self._store.ingest(text, labels, now)

    def note(self, name: str, labels: Mapping[str, str], value: float, now: float) -> None:
        """What somebody else knows of a revision."""
        self._store.note(name, labels, value, now)

    def lost(self, labels: Mapping[str, str], now: float) -> None:
        """The replica's /metrics could not be read."""
        self._store.lost(labels, now)

    def forget(self, labels: Mapping[str, str]) -> None:
        """The replica has ended."""
        self._store.forget(labels)

    def __len__(self) -> int:
        return len(self._store)

    def evaluate(self, query: str, now: float) -> float | None:
        """NaN is an answer: triggers.answer says what it means to KEDA."""
        found = self._value(syntax.parse(query), now)
        if isinstance(found, float):
            return found
        if len(found) > 1:
            raise UnsupportedQuery(query, f"gives {len(found)} series where one number is needed")
        return next(iter(found.values()), None)

    def vector(self, query: str, now: float) -> Vector:
        """The whole answer, element by element."""
        return self._vector(syntax.parse(query), now)

    def newest(self, query: str) -> float | None:
        """When the last of the samples was taken that the query is about; None: there never was any."""
        found = [each for node in syntax.selectors(syntax.parse(query)) for each in self._store.select(node)]
        return max((each.points[-1][0] for each in found if each.points), default=None)

    def _value(self, node: syntax.Node, now: float) -> float | Vector:
        if isinstance(node, syntax.Number):
            return node.value
        if isinstance(node, syntax.Selector):
            present = ((found, series.at(found, now - node.offset_s)) for found in self._store.select(node))
            return {found.labels: value for found, value in present if value is not None}
        if isinstance(node, syntax.Call):
            return self._call(node, now)
        if isinstance(node, syntax.Aggregation):
            return functions.aggregated(node, self._vector(node.of, now))
        return _binary(node, self._value(node.left, now), self._value(node.right, now))

    def _vector(self, node: syntax.Node, now: float) -> Vector:
        found = self._value(node, now)
        return {(): found} if isinstance(found, float) else found

    def _call(self, node: syntax.Call, now: float) -> float | Vector:
        first = node.arguments[0]
        if node.name in syntax.RANGES and isinstance(first, syntax.Selector):
            end = now - first.offset_s
            points = ((s.labels, series.within(s, end, first.range_s)) for s in self._store.select(first))
            ranged = ((labels, functions.over_range(node.name, found, first.range_s, end)) for labels, found in points)
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
        """Prometheus' scalar(): the one element, and NaN for none or several."""
        found = self._value(node, now)
        if isinstance(found, float):
            return found
        return next(iter(found.values())) if len(found) == 1 else math.nan


def _binary(node: syntax.Binary, left: float | Vector, right: float | Vector) -> float | Vector:
    if node.operator in ("and", "or", "unless"):
        return _sets(node, left if isinstance(left, dict) else {}, right if isinstance(right, dict) else {})
    if isinstance(left, dict) and isinstance(right, dict):
        others = {_key(node, labels): value for labels, value in right.items()}
        pairs = ((labels, value, others.get(_key(node, labels))) for labels, value in left.items())
        return _kept((labels, _applied(node, a, b, a)) for labels, a, b in pairs if b is not None)
    if isinstance(left, dict):
        return _kept((labels, _applied(node, a, _number(right), a)) for labels, a in left.items())
    if isinstance(right, dict):
        return _kept((labels, _applied(node, left, b, b)) for labels, b in right.items())
    if node.operator in _ARITHMETIC:
        return _ARITHMETIC[node.operator](left, right)
    return float(_COMPARISONS[node.operator](left, right))


def _number(value: float | Vector) -> float:
    assert isinstance(value, float)
    return value


def _applied(node: syntax.Binary, a: float, b: float, kept: float) -> float | None:
    """A comparison keeps the vector's value where it holds and drops the element where it does not."""
    if node.operator in _ARITHMETIC:
        return _ARITHMETIC[node.operator](a, b)
    holds = _COMPARISONS[node.operator](a, b)
    return float(holds) if node.as_bool else kept if holds else None


def _kept(elements: "functions.Elements") -> Vector:
    return {labels: value for labels, value in elements if value is not None}


def _key(node: syntax.Binary, labels: Labels) -> Labels:
    """What two elements must share to belong together."""
    if node.labels is None:
        return labels
    return tuple((name, value) for name, value in labels if (name in node.labels) != node.ignoring)


def _sets(node: syntax.Binary, left: Vector, right: Vector) -> Vector:
    ours, theirs = {_key(node, labels) for labels in left}, {_key(node, labels) for labels in right}
    if node.operator == "or":
        return {**left, **{labels: value for labels, value in right.items() if _key(node, labels) not in ours}}
    both = node.operator == "and"
    return {labels: value for labels, value in left.items() if (_key(node, labels) in theirs) == both}
