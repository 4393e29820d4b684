"""PromQL for one revision, and its answers as counts, or why there are none. Pure; the target answers the queries.

Prometheus and the evaluator of the embedded platform support every query.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pilotlight.contract import (
    METRIC_GATEWAY_LOST,
    METRIC_IN_FLIGHT,
    METRIC_REQUEST_DURATION,
    series_labels,
)
from pilotlight.prometheus.histograms import Buckets, upper_bound
from pilotlight.spec.canary_policy import COMPARED_METRICS, QUANTILES, CanaryPolicy, fill_placeholders
from pilotlight.targets.target import Sample
from pilotlight.wire import prometheus_text

QueryName = str  # of a counter, `COUNTER before` of its value before the window, or `fresh`

# Prometheus scrapes once a minute by default, and sometimes late.
MIN_WINDOW_S: Final = 90.0
MAX_WINDOW_S: Final = 3600.0
WHOLE_SECONDS_FROM_S: Final = 60.0
STALE_INTERVALS: Final = 2
# Counters by name, each with the label that its sum keeps.
_COUNTERS: Final = {
    "buckets": (f"{METRIC_REQUEST_DURATION}_bucket", " by (le)"),
    "codes": (f"{METRIC_REQUEST_DURATION}_count", " by (code)"),
    "seconds": (f"{METRIC_REQUEST_DURATION}_sum", ""),
    "lost": (METRIC_GATEWAY_LOST, ""),
}


class Missing(NamedTuple):
    """Reason for missing data. Probes fix `empty` and `nan`, time fixes `early`; the others are errors of the
    metrics."""

    kind: Literal["empty", "nan", "early", "stale", "unreachable", "unusable"]
    reason: str


class ObservedCounts(NamedTuple):
    """Counts of one revision within the window."""

    requests: float = 0.0
    errors: float = 0.0  # 5xx responses, including those of the gateway for replicas that ended without a response
    buckets: Buckets = ()
    seconds: float = 0.0  # sum of latencies
    observed_s: float = 0.0

    @property
    def timed(self) -> float:
        """Requests with a response, hence with a known latency."""
        return (self.buckets[-1][1] if self.buckets else 0.0) or self.requests


class MetricScope(NamedTuple):
    """Revision and time window of queries."""

    namespace: str
    service: str
    revision: str
    window_s: float
    fresh_s: float = MIN_WINDOW_S  # older metrics are stale
    observed_s: float = 0.0  # part of the window in which the canary had a weight


QueryAnswer = Sequence[Sample] | Missing


def metric_scopes(
    namespace: str, service: str, canary: str, stable: str, policy: CanaryPolicy, observed_s: float
) -> tuple[MetricScope, MetricScope]:
    """Return the scopes of canary and baseline since the first weight: what a revision did before is not judged."""
    window_s = min(observed_s, MAX_WINDOW_S)
    fresh_s = max(STALE_INTERVALS * policy.interval_s, MIN_WINDOW_S)
    return (
        MetricScope(namespace, service, canary, window_s, fresh_s, window_s),
        MetricScope(namespace, service, stable, window_s, fresh_s, window_s),
    )


def within_last(scope: MetricScope, seconds: float) -> MetricScope:
    return scope._replace(window_s=min(seconds, MAX_WINDOW_S), observed_s=min(seconds, MAX_WINDOW_S))


def metric_queries(scope: MetricScope) -> dict[QueryName, str]:
    """Return PromQL by name: the highest value of every counter in the window, and its value before."""
    # Not `increase`: it extrapolates at both ends and misses the value of a counter at its first scrape, hence a whole
    # burst of probes and the first error of every replica. `and` drops replicas that ended before the window:
    # Prometheus still returns them for five minutes (staleness) if it missed their end.
    labels = series_labels(scope.namespace, scope.service, scope.revision)
    selector = prometheus_text.format_labels(labels)  # matchers have the syntax of labels
    window = promql_duration(scope.window_s)

    queries = {"fresh": f"count(max_over_time({METRIC_IN_FLIGHT}{{{selector}}}[{promql_duration(scope.fresh_s)}]))"}
    for name, (metric, by) in _COUNTERS.items():
        series = f"{metric}{{{selector}}}"
        highest = f"max_over_time({series}[{window}])"
        queries[name] = f"sum{by} ({highest})"
        queries[f"{name} before"] = f"sum{by} ({series} offset {window} and {highest})"
    return queries


def read_answers(
    answers: Mapping[QueryName, QueryAnswer], scope: MetricScope, *, running: bool = True
) -> ObservedCounts | Missing:
    """Return the counts. `running`: the revision has replicas, so that scrapes are expected."""
    for answer in answers.values():
        if isinstance(answer, Missing):
            return answer
    if running and not answers.get("fresh") and scope.observed_s >= scope.fresh_s:
        problem = f"{scope.revision} was not scraped for {scope.fresh_s:g} s"
        return Missing("stale", f"{problem}; is Prometheus up, and does it scrape the service?")
    counted = _increase(answers, "codes", "code")
    lost = sum(value for value in _increase(answers, "lost", "").values() if not math.isnan(value))
    requests = sum(counted.values()) + lost
    if math.isnan(requests):
        return Missing("nan", f"the requests of {scope.revision} are not a number")
    if requests <= 0:
        return Missing("empty", f"{scope.revision} had no requests within {promql_duration(scope.window_s)}")
    errors = sum(value for code, value in counted.items() if code.startswith("5")) + lost
    seconds = sum(_increase(answers, "seconds", "").values())
    buckets = rising_buckets((upper_bound(text), count) for text, count in _increase(answers, "buckets", "le").items())
    return ObservedCounts(requests, errors, buckets, seconds, scope.observed_s)


def single_value(answer: QueryAnswer, name: str) -> float | Missing:
    if isinstance(answer, Missing):
        return answer
    if len(answer) > 1:
        return Missing("unusable", f"promql {name} gives {len(answer)} series, must return one; use sum()")
    if not answer:
        return Missing("empty", f"promql {name} returned no result")
    value = answer[0].value
    return Missing("nan", f"promql {name} gives NaN") if math.isnan(value) else value


def display_queries(policy: CanaryPolicy, canary: MetricScope, stable: str) -> dict[str, str]:
    """Return one query per check, as it can be pasted into Prometheus; PromQL checks are evaluated with it."""
    values = {
        "revision": canary.revision, "stable": stable, "namespace": canary.namespace, "service": canary.service,
        "window": promql_duration(max(canary.window_s, MIN_WINDOW_S)),  # a rate needs two samples
    }  # fmt: skip
    compared = dict.fromkeys(COMPARED_METRICS if policy.compare else (), "")
    queries = compared | {each.name: each.query for each in policy.checks}
    return {
        name: fill_placeholders(query, values, name) if query else _metric_query(name, canary)
        for name, query in queries.items()
    }


def _metric_query(name: str, scope: MetricScope) -> str:
    """Return a metric as one query; without an offset, since the counters of a new revision start with the canary."""
    queries = metric_queries(scope)
    if name in QUANTILES:
        return f"1000 * histogram_quantile({QUANTILES[name]:g}, {queries['buckets']})"
    if name == "mean_ms":
        timed = _only(queries["buckets"].replace(" by (le)", ""), 'le="+Inf"')
        return f"1000 * {queries['seconds']} / {timed}"
    all_codes = queries["codes"].replace(" by (code)", "")
    requests = f"({_or_zero(all_codes)} + {_or_zero(queries['lost'])})"
    if name == "rps":
        return f"{requests} / {max(scope.observed_s, 1.0):g}"
    failed = _only(all_codes, 'code=~"5.."')
    return f"({_or_zero(failed)} + {_or_zero(queries['lost'])}) / {requests}"


def _only(query: str, matcher: str) -> str:
    return query.replace("}[", f",{matcher}}}[")


def _or_zero(query: str) -> str:
    """Return the query with 0 for a counter that was never scraped."""
    return f"({query} or vector(0))"


def promql_duration(seconds: float) -> str:
    """Return a PromQL duration, rounded down so that the range never includes time before the canary."""
    milliseconds = max(1, math.floor(seconds * 1000))
    in_seconds = milliseconds % 1000 == 0 or seconds >= WHOLE_SECONDS_FROM_S
    return f"{milliseconds // 1000}s" if in_seconds else f"{milliseconds}ms"


def _increase(answers: Mapping[QueryName, QueryAnswer], query: QueryName, label: str) -> dict[str, float]:
    """Return the increase by the value of the label; never negative, despite counter resets. NaN stays NaN."""
    before = _numbers(answers.get(f"{query} before", ()), label)
    after = _numbers(answers.get(query, ()), label)
    return {name: max(value - before.get(name, 0.0), 0.0) for name, value in after.items()}


def _numbers(answer: QueryAnswer, label: str) -> dict[str, float]:
    return {} if isinstance(answer, Missing) else {each.labels.get(label, ""): each.value for each in answer}


def rising_buckets(buckets: Iterable[tuple[float, float]]) -> Buckets:
    """Return the buckets by edge, without NaN, never falling: sums of ranges scraped at different times may fall."""
    rising: list[tuple[float, float]] = []
    for edge, count in sorted(each for each in buckets if not math.isnan(each[0]) and math.isfinite(each[1])):
        rising.append((edge, max(count, rising[-1][1] if rising else 0.0)))
    return tuple(rising)
