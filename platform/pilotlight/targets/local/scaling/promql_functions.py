"""PromQL functions over ranges and vectors, with Prometheus' extrapolation and interpolation."""

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
    "sum": lambda values: float(sum(values)),
    "avg": lambda values: sum(values) / len(values),
    "min": lambda values: min((n for n in values if not math.isnan(n)), default=math.nan),
    "max": lambda values: max((n for n in values if not math.isnan(n)), default=math.nan),
    "count": lambda values: float(len(values)),
}


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
            groups.setdefault(rest, []).append((_upper_bound(bound), value))
    return {labels: _quantile(quantile, sorted(buckets)) for labels, buckets in groups.items()}


def _upper_bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    """Interpolate linearly within the bucket of the rank; in the +Inf bucket return the highest finite bound."""
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
    bucket = next(index for index, count in enumerate(counts) if count >= rank)
    if bucket == len(buckets) - 1:
        return buckets[-2][0]
    end = buckets[bucket][0]
    if bucket == 0 and end <= 0:
        return end
    start, below = (buckets[bucket - 1][0], counts[bucket - 1]) if bucket else (0.0, 0.0)
    return start + (end - start) * divided(rank - below, counts[bucket] - below)


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
