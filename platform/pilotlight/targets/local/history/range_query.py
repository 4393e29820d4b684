"""Range queries over the history, for panels of dashboards without a Prometheus server.

The history is presented under the names of the metrics that it stands for, with the gateway's counts in place of the
predictors'. Other metrics have no series here.
"""

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from pilotlight.contract import (
    LATENCY_BUCKETS,
    METRIC_GATEWAY_COLD_STARTS,
    METRIC_GATEWAY_WAITING,
    METRIC_GPU_MEMORY_USED,
    METRIC_REPLICAS,
    METRIC_REQUEST_DURATION,
    series_labels,
)
from pilotlight.targets.local.history.points import Point, Resolution, Run, Samples, Series
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator, UnsupportedQuery, parse, selectors
from pilotlight.targets.local.scaling.promql.series import Selector, matches

COUNT: Final = f"{METRIC_REQUEST_DURATION}_count"
BUCKET: Final = f"{METRIC_REQUEST_DURATION}_bucket"
RECORDED: Final = (
    METRIC_REPLICAS, METRIC_GATEWAY_WAITING, METRIC_GATEWAY_COLD_STARTS, METRIC_GPU_MEMORY_USED, COUNT, BUCKET,
)  # fmt: skip
STATES: Final = ("ready", "starting")  # of replicas
MAX_SAMPLES: Final = 1_000_000  # loaded for a query: 200 MB and some seconds
POINTS: Final = 90  # of a panel; each is an evaluation of its queries
MIN_SAMPLES: Final = 4  # in the range of a rate, as Grafana has it
_BOUNDS: Final = (*(f"{edge:g}" for edge in LATENCY_BUCKETS), "+Inf")
Measured = Iterator[tuple[str, Mapping[str, str], float, bool]]  # name, labels, value, whether it is a count


class RangeSeries(Struct, frozen=True):
    labels: Mapping[str, str]
    values: tuple[float | None, ...]


class RangeResult(Struct, frozen=True):
    """Result of a range query; `source` is prometheus or history, `reason` why the history cannot answer it."""

    source: str
    step: int
    at: tuple[int, ...]
    series: tuple[RangeSeries, ...]
    reason: str = ""


def step_of(seconds: int, chosen: Resolution) -> int:
    """Return the distance of evaluations: a multiple of the resolution that gives at most POINTS of them."""
    return math.ceil(seconds / POINTS / chosen.step) * chosen.step


def with_intervals(query: str, seconds: int, chosen: Resolution) -> str:
    """Return a query of a dashboard with Grafana's variables of time replaced."""
    interval = max(MIN_SAMPLES * chosen.step, step_of(seconds, chosen))
    return query.replace("$__rate_interval", f"{interval}s").replace("$__range", f"{seconds}s")


def evaluate(
    query: str, intervals: Mapping[int, Samples], chosen: Resolution, window: Run, runs: Sequence[Run]
) -> RangeResult:
    seconds = window.end - window.start
    step, text = step_of(seconds, chosen), with_intervals(query, seconds, chosen)
    times = tuple(range(window.start - window.start % step + step, window.end + 1, step))
    try:
        wanted = selectors(parse(text))
    except UnsupportedQuery as error:
        return RangeResult("history", step, times, (), str(error))
    names = {selector.name for selector in wanted}
    if not any(map(is_recorded, wanted)):
        return RangeResult("history", step, times, (), f"the history has no such series of {', '.join(sorted(names))}")
    known = {each for each in set().union(*intervals.values()) if may_match(each, wanted)}
    if len(known) * len(intervals) * (len(_BOUNDS) if BUCKET in names else 2) > MAX_SAMPLES:
        reason = f"the history has {len(known)} series of it, too many; choose a service or a shorter range"
        return RangeResult("history", step, times, (), reason)
    evaluator = loaded(intervals, known, chosen.step, names)
    found: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
    for at in times:
        if any(run.start < at <= run.end for run in runs):
            for labels, value in evaluator.vector(text, float(at)).items():
                if math.isfinite(value):
                    found.setdefault(labels, {})[at] = value
    series = tuple(RangeSeries(dict(labels), tuple(map(values.get, times))) for labels, values in sorted(found.items()))
    return RangeResult("history", step, times, series)


def is_recorded(selector: Selector) -> bool:
    """Return whether the history stands for the metric; of replicas it has some states only."""
    if selector.name != METRIC_REPLICAS:
        return selector.name in RECORDED
    chosen = [each for each in selector.matchers if each[0] == "state"]
    return any(all(matches({"state": state}, each) for each in chosen) for state in STATES)


def may_match(series: Series, wanted: Iterable[Selector]) -> bool:
    """Return whether a selector matches the series as far as its identity is concerned."""
    labels = series_labels(series.namespace, series.service, series.revision)
    return any(all(matches(labels, each) for each in selector.matchers if each[0] in labels) for selector in wanted)


def loaded(intervals: Mapping[int, Samples], known: Collection[Series], step: int, names: set[str]) -> Evaluator:
    """Return an evaluator that holds the intervals as samples at their ends; counts as counters that only rise."""
    evaluator, counters = Evaluator(), dict[tuple[str, tuple[tuple[str, str], ...]], float]()
    for at in sorted(intervals):
        for series in known:
            for name, labels, value, counted in measured(series, intervals[at].get(series, Point()), names):
                if counted:
                    key = name, tuple(labels.items())
                    value = counters[key] = counters.get(key, 0.0) + value
                evaluator.load(name, labels, value, float(at + step))
    return evaluator


def measured(series: Series, point: Point, names: Container[str]) -> Measured:
    labels = series_labels(series.namespace, series.service, series.revision)
    if METRIC_REPLICAS in names:
        for state, number in zip(STATES, (point.ready, point.starting), strict=True):
            yield METRIC_REPLICAS, {**labels, "workload": series.workload, "state": state}, number, False
    if METRIC_GATEWAY_WAITING in names:
        yield METRIC_GATEWAY_WAITING, labels, point.waiting, False
    if METRIC_GPU_MEMORY_USED in names and point.gpu_bytes:
        yield METRIC_GPU_MEMORY_USED, {**labels, "gpu_uuid": "all"}, point.gpu_bytes, False
    if METRIC_GATEWAY_COLD_STARTS in names:
        yield METRIC_GATEWAY_COLD_STARTS, labels, point.cold_starts, True
    if COUNT in names:
        yield COUNT, {**labels, "code": "2xx-4xx"}, point.requests - point.errors, True
        yield COUNT, {**labels, "code": "5xx"}, point.errors, True
    if BUCKET in names:
        for bound, count in zip(_BOUNDS, accumulate(point.latencies or (0,) * len(_BOUNDS)), strict=True):
            yield BUCKET, {**labels, "le": bound}, count, True
