"""Prometheus' functions over points and vectors, with its rules for what lies between and beyond samples."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from pilotlight.targets.local.scaling.promql_syntax import Aggregation

Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]
Elements = Iterable[tuple[Labels, float | None]]
Points = Sequence[tuple[float, float]]

_REDUCE: Final[dict[str, Callable[[list[float]], float]]] = {
    "sum": lambda found: float(sum(found)),
    "avg": lambda found: sum(found) / len(found),
    "min": lambda found: min((n for n in found if not math.isnan(n)), default=math.nan),
    "max": lambda found: max((n for n in found if not math.isnan(n)), default=math.nan),
    "count": lambda found: float(len(found)),
}


def aggregated(node: Aggregation, vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        key = tuple((name, text) for name, text in labels if (name in node.labels) != node.without)
        groups.setdefault(key, []).append(value)
    return {key: _REDUCE[node.name](found) for key, found in groups.items()}


def over_range(name: str, points: Points, range_s: float, now: float) -> float | None:
    """None where there are too few samples to tell."""
    if name.endswith("_over_time"):
        return _REDUCE[name.removesuffix("_over_time")]([value for _, value in points]) if points else None
    if len(points) < 2:
        return None
    if name == "irate":
        (before, low), (after, high) = points[-2], points[-1]
        return (high - low if high >= low else high) / (after - before)
    grown = increase(points, range_s, now)
    return grown / range_s if name == "rate" else grown


def increase(points: Points, range_s: float, now: float) -> float:
    """A counter's growth over the range: a fall is a restart at 0; the ends are extrapolated as far as the samples
    make it likely that the series was there, and never below 0 at the start."""
    (first_at, first), (last_at, last) = points[0], points[-1]
    resets = sum(before for (_, before), (_, after) in pairwise(points) if after < before)
    grown = last - first + resets
    sampled = last_at - first_at
    between = sampled / (len(points) - 1)
    before_s, after_s = first_at - (now - range_s), now - last_at
    if before_s >= between * 1.1:
        before_s = between / 2
    if grown > 0 and first >= 0:
        before_s = min(before_s, sampled * first / grown)
    if after_s >= between * 1.1:
        after_s = between / 2
    return grown * (sampled + before_s + after_s) / sampled


def quantiles(quantile: float, vector: Vector) -> Vector:
    """histogram_quantile: buckets are grouped by all labels but `le`."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in vector.items():
        bound = dict(labels).get("le")
        if bound is not None:
            rest = tuple((name, text) for name, text in labels if name != "le")
            groups.setdefault(rest, []).append((_bound(bound), value))
    return {labels: _quantile(quantile, sorted(buckets)) for labels, buckets in groups.items()}


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    """Linear within the bucket that holds the rank; above all finite bounds it is the highest of them."""
    if math.isnan(quantile) or len(buckets) < 2 or buckets[-1][0] != math.inf:
        return math.nan
    if not 0 <= quantile <= 1:
        return -math.inf if quantile < 0 else math.inf
    counts: list[float] = []
    for _, count in buckets:
        counts.append(max(count, counts[-1]) if counts else count)
    if counts[-1] == 0 or math.isnan(counts[-1]):
        return math.nan
    rank = quantile * counts[-1]
    place = next(index for index, count in enumerate(counts) if count >= rank)
    if place == len(buckets) - 1:
        return buckets[-2][0]
    end = buckets[place][0]
    if place == 0 and end <= 0:
        return end
    start, below = (buckets[place - 1][0], counts[place - 1]) if place else (0.0, 0.0)
    return start + (end - start) * divided(rank - below, counts[place] - below)


def divided(a: float, b: float) -> float:
    """As floats do it: 0 / 0 is NaN, anything else by 0 infinite."""
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
