"""Verdicts on the measurements of a canary, from its counts and those of the baseline. Pure.

Failed: the harm is significant for this look. Inconclusive: chance may explain it, or there were fewer requests than
the policy requires; too few never make a measurement Successful, but may suffice to fail it. Error: the metrics could
not be queried.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.canaries import statistics
from pilotlight.canaries.canary_state import Measurement, Verdict
from pilotlight.canaries.queries import Missing, ObservedCounts, rising_buckets
from pilotlight.canaries.statistics import EarlierStrata, VariantCounts, assess, next_look, pooled
from pilotlight.prometheus.histograms import quantile
from pilotlight.spec.canary_policy import COMPARED_METRICS, METRICS, QUANTILES, CanaryPolicy, Check, format_value

# Metrics with tests that are exact for any number of requests; the others are asymptotic.
EXACT_TESTS: Final = frozenset({*QUANTILES, "error_rate"})
MIN_VARIANCE: Final = 1e-18  # of a mean in seconds²: if all requests are in one bucket of width 0
BASELINE_SUFFIX: Final = " vs baseline"  # suffix of the names of comparisons
SEVERITY: Final[tuple[Verdict, ...]] = ("Failed", "Error", "Inconclusive", "Successful")
NO_DATA_KINDS: Final = ("empty", "nan", "early")
NOT_QUERIED: Final = Missing("empty", "not queried")

QueryValues = Mapping[str, float | Missing]  # results of PromQL checks by name


class Judgement(Struct, frozen=True, omit_defaults=True):
    """Verdicts of one look, and the requests that canary and baseline lack to the minimum of the policy."""

    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    reason: str = ""
    missing_requests: int = 0
    missing_baseline_requests: int = 0
    pair: VariantCounts | None = None  # counts that were compared at this weight


class Analysis(NamedTuple):
    """Inputs that all measurements of one look share."""

    policy: CanaryPolicy
    canary: ObservedCounts | Missing
    baseline: ObservedCounts | Missing
    look: int
    tests: int
    at: str
    queries: Mapping[str, str]
    paired_canary: ObservedCounts | Missing  # the canary within the window of the baseline
    pairs: Sequence[VariantCounts]  # strata of all weights so far, the current one last
    pooled: VariantCounts | None  # over all strata, for display
    earlier_looks: int  # before the current weight


def judge(
    policy: CanaryPolicy,
    canary: ObservedCounts | Missing,
    baseline: ObservedCounts | Missing = NOT_QUERIED,
    query_values: QueryValues = {},  # noqa: B006 - never changed
    history: Sequence[Measurement] = (),
    at: str = "",
    queries: Mapping[str, str] = {},
    paired_canary: ObservedCounts | Missing | None = None,
    earlier: EarlierStrata = EarlierStrata(),  # noqa: B008 - never changed
) -> Judgement:
    """Return the verdicts of one look. `queries` are shown with the values; `history` has the measurements so far.
    `paired_canary` is the canary within the window of the baseline, if that is shorter than its own; `earlier` has the
    strata of earlier weights."""
    paired = _sanitized(canary if paired_canary is None else paired_canary)
    canary, baseline = _sanitized(canary), _sanitized(baseline)
    pair = None
    if isinstance(paired, ObservedCounts) and isinstance(baseline, ObservedCounts):
        pair = VariantCounts(paired, baseline)
    pairs = (*earlier.pairs, *([pair] if pair else []))
    both = pooled(pairs) if pair and policy.compare else None
    look, tests = next_look(history), count_tests(policy)
    context = Analysis(policy, canary, baseline, look, tests, at, queries, paired, pairs, both, earlier.looks)
    measurements = tuple(_measurements(context, query_values))
    if not measurements:
        measurements = (_require_requests(context, _new_measurement(context, "requests")),)
    if policy.dry_run_checks:
        return Judgement("Successful", measurements, pair=pair if policy.compare else None)
    worst = min((each.verdict for each in measurements), key=SEVERITY.index)
    reason = next((each.reason for each in measurements if each.verdict == worst), "")
    no_result = any(isinstance(value, Missing) and value.kind in ("empty", "nan") for value in query_values.values())
    missing = max(_missing_requests(canary, policy), int(no_result))
    if not policy.compare:
        return Judgement(worst, measurements, reason, missing)
    missing = max(missing, _missing_requests(paired, policy))
    return Judgement(worst, measurements, reason, missing, _missing_requests(baseline, policy), pair)


def compared_metrics(policy: CanaryPolicy) -> list[str]:
    """Return the metrics that are compared with the baseline: COMPARED_METRICS and those with a check."""
    names = (*COMPARED_METRICS, *(each.name for each in policy.checks if not each.query and each.name != "rps"))
    return list(dict.fromkeys(names)) if policy.compare else []


def count_tests(policy: CanaryPolicy) -> int:
    """Return the number of tests of one look, which share its error budget."""
    bounds = [bound for each in policy.checks if not each.query for bound in (each.maximum, each.minimum)]
    return sum(bound is not None for bound in bounds) + len(compared_metrics(policy))


def _measurements(context: Analysis, query_values: QueryValues) -> Iterator[Measurement]:
    for check in context.policy.checks:
        if check.query:
            yield _query_measurement(context, check, query_values.get(check.name, NOT_QUERIED))
        elif check.maximum is not None or check.minimum is not None:
            yield _bound_measurement(context, check)
    for name in compared_metrics(context.policy):
        yield _comparison_measurement(context, name)


def _new_measurement(context: Analysis, check: str) -> Measurement:
    requests = context.canary.requests if isinstance(context.canary, ObservedCounts) else 0.0
    query = context.queries.get(check, context.queries.get(check.removesuffix(BASELINE_SUFFIX), ""))
    measurement = Measurement(
        check, context.at, "Successful", None, None, math.floor(requests), query, look=context.look
    )
    return _no_data(measurement, context.canary) if isinstance(context.canary, Missing) else measurement


def _no_data(measurement: Measurement, missing: Missing) -> Measurement:
    """Mark a measurement without data: Inconclusive for missing requests, Error if the metrics were unusable."""
    verdict = "Inconclusive" if missing.kind in NO_DATA_KINDS else "Error"
    return replace(measurement, verdict=verdict, reason=missing.reason)


def _query_measurement(context: Analysis, check: Check, result: float | Missing) -> Measurement:
    """Measure a PromQL check. The number of requests behind a query is unknown, so its value decides; failure_limit
    covers outliers."""
    bound = check.maximum if check.maximum is not None else check.minimum
    measurement = replace(_new_measurement(context, check.name), verdict="Successful", reason="", bound=bound)
    if isinstance(result, Missing) or math.isnan(result):
        missing = result if isinstance(result, Missing) else Missing("nan", f"promql {check.name} gives NaN")
        return _no_data(measurement, missing)
    measurement = replace(measurement, value=result)
    too_few = context.policy.min_requests > 0 and _missing_requests(context.canary, context.policy) > 0
    if not _out_of_bounds(check, result):
        return _require_requests(context, measurement) if too_few else measurement
    reason = f"{check.name} is {result:.6g}, {_violation(check)}"
    return replace(measurement, reason=reason, verdict="Inconclusive" if too_few else "Failed")


def _bound_measurement(context: Analysis, check: Check) -> Measurement:
    measurement, observed = _new_measurement(context, check.name), context.canary
    value = metric_value(check.name, observed) if isinstance(observed, ObservedCounts) else None
    if isinstance(observed, Missing):
        return measurement
    if value is None:
        return _no_data(measurement, Missing("nan", f"{check.name} cannot be read from the metrics"))
    p_values = [above_maximum(check.name, observed, check.maximum)] if check.maximum is not None else []
    p_values += [below_minimum(check.name, observed, check.minimum)] if check.minimum is not None else []
    low, high = confidence_interval(check.name, observed)
    bound = check.maximum if check.maximum is not None else check.minimum
    measurement = replace(measurement, value=value, low=low, high=high, bound=bound)
    significance = assess(min(p_values), context.look, context.tests)
    if significance == "significant" and _is_conclusive(context, check.name, observed):
        return replace(measurement, verdict="Failed", reason=f"{_summary(measurement)}, {_violation(check)}")
    if significance != "insignificant" or _out_of_bounds(check, value):
        reason = f"{_summary(measurement)}, perhaps {_violation(check)}: too few requests to be sure"
        return replace(measurement, verdict="Inconclusive", reason=reason)
    return _require_requests(context, measurement)


def _comparison_measurement(context: Analysis, name: str) -> Measurement:
    measurement = _new_measurement(context, name + BASELINE_SUFFIX)
    canary, baseline = context.paired_canary, context.baseline
    if isinstance(canary, Missing):
        return _no_data(measurement, canary)
    if isinstance(baseline, Missing):
        return _no_data(measurement, Missing(baseline.kind, f"the baseline: {baseline.reason}"))
    canary, baseline = context.pooled or VariantCounts(canary, baseline)
    value, baseline_value = metric_value(name, canary), metric_value(name, baseline)
    if value is None or baseline_value is None:
        return _no_data(measurement, Missing("nan", f"{name} cannot be read from the metrics"))
    ratio = context.policy.ratio
    low, high = confidence_interval(name, canary)
    measurement = replace(
        measurement, value=value, baseline=baseline_value, bound=ratio * baseline_value, low=low, high=high,
        requests=math.floor(canary.requests),
    )  # fmt: skip
    p_value = worse_than_baseline(name, context.pairs, ratio)
    # Every weight has its own part of the budget and counts its looks anew; at the last one there is no baseline.
    steps = max(len(context.policy.steps) - 1, 1)
    significance = assess(p_value, context.look - context.earlier_looks, context.tests * steps)
    baseline_requests = sum(each.baseline.requests for each in context.pairs)
    comparison = f"than {ratio:g} times the baseline's {format_value(name, baseline_value)} of {baseline_requests:.0f}"
    if significance == "significant" and _is_conclusive(context, name, canary):
        return replace(measurement, verdict="Failed", reason=f"{_summary(measurement)}, worse {comparison}")
    if significance != "insignificant":
        reason = f"{_summary(measurement)}, perhaps worse {comparison}: too few requests to be sure"
        return replace(measurement, verdict="Inconclusive", reason=reason)
    return _require_requests(context, measurement)


def _require_requests(context: Analysis, measurement: Measurement) -> Measurement:
    """Make a success Inconclusive with fewer requests than required, of the baseline too in a comparison."""
    if measurement.verdict != "Successful":
        return measurement
    required, compared = context.policy.min_requests, measurement.check.endswith(BASELINE_SUFFIX)
    observed = context.paired_canary if compared else context.canary
    if _missing_requests(observed, context.policy):
        requests = math.floor(observed.requests) if isinstance(observed, ObservedCounts) else 0
        reason = f"{requests} of the {required} required requests"
        return replace(measurement, verdict="Inconclusive", reason=reason)
    if compared and _missing_requests(context.baseline, context.policy):
        return replace(measurement, verdict="Inconclusive", reason=f"the baseline had fewer than {required} requests")
    return measurement


def _is_conclusive(context: Analysis, name: str, observed: ObservedCounts) -> bool:
    """Whether a failure counts: asymptotic tests need the minimum of requests, exact ones do not."""
    return name in EXACT_TESTS or not _missing_requests(observed, context.policy)


def _missing_requests(observed: ObservedCounts | Missing, policy: CanaryPolicy) -> int:
    if isinstance(observed, Missing):
        return max(policy.min_requests, 1) if observed.kind in ("empty", "nan") else 0
    return max(math.ceil(policy.min_requests - observed.requests), 0)


def _out_of_bounds(check: Check, value: float) -> bool:
    above = check.maximum is not None and value > check.maximum
    return above or (check.minimum is not None and value < check.minimum)


def _violation(check: Check) -> str:
    bounds = (("below", check.maximum), ("above", check.minimum))
    parts = [
        f"{relation} {format_value(check.name, bound) if check.name in METRICS else f'{bound:g}'}"
        for relation, bound in bounds
        if bound is not None
    ]
    return f"not {' and '.join(parts)}"


def _summary(measurement: Measurement) -> str:
    """Return `p99_ms is 412 ms (350 ms to 600 ms) in 1200 requests`."""
    name = measurement.check.removesuffix(BASELINE_SUFFIX)
    low, high = format_value(name, measurement.low), format_value(name, measurement.high)
    interval = f"at least {low}" if measurement.high is None else f"{low} to {high}"
    return f"{name} is {format_value(name, measurement.value)} ({interval}) in {measurement.requests} requests"


def _sanitized(observed: ObservedCounts | Missing) -> ObservedCounts | Missing:
    """Return usable counts from any answer of a metrics server: finite, buckets sorted and not falling."""
    if isinstance(observed, Missing):
        return observed
    numbers = (observed.requests, observed.errors, observed.seconds, observed.observed_s)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return Missing("nan", "its request metrics are not a number")
    if observed.requests <= 0:
        return Missing("empty", "it had no requests")
    errors = min(observed.errors, observed.requests)
    return observed._replace(errors=errors, buckets=rising_buckets(observed.buckets))


def metric_value(name: str, observed: ObservedCounts) -> float | None:
    """Return the value in the unit of its name; None if the counts do not suffice."""
    if name in QUANTILES:
        seconds = quantile(observed.buckets, QUANTILES[name])
        return None if seconds is None else seconds * 1000
    if name == "rps":
        return observed.requests / observed.observed_s if observed.observed_s > 0 else None
    return observed.errors / observed.requests if name == "error_rate" else 1000 * observed.seconds / observed.timed


def confidence_interval(name: str, observed: ObservedCounts) -> tuple[float | None, float | None]:
    """Return the 95 % confidence interval; None for an open end."""
    if name in QUANTILES:
        low, high = statistics.quantile_interval(observed.buckets, QUANTILES[name])
        return low * 1000, high * 1000 if math.isfinite(high) else None
    if name == "error_rate":
        return statistics.wilson(observed.errors, observed.requests)
    z = statistics.NORMAL.inv_cdf((1 + statistics.CONFIDENCE) / 2)
    if name == "rps":
        estimate, error = observed.requests, math.sqrt(observed.requests)
        scale = 1 / observed.observed_s if observed.observed_s > 0 else 0.0
    else:
        (estimate, error), scale = statistics.mean_and_error(observed), 1000.0
    return max(estimate - z * error, 0.0) * scale, (estimate + z * error) * scale


def above_maximum(name: str, observed: ObservedCounts, maximum: float) -> float:
    """Return the p-value of "above the maximum": the probability of this observation if the value were at it."""
    if name in QUANTILES:
        # "p99 > t" means that more than 1 % of the requests took longer than t: a binomial test. Counts between two
        # edges are interpolated, hence rounded towards no harm.
        hits = math.floor(statistics.count_above(observed.buckets, maximum / 1000))
        return statistics.binomial_tail(hits, math.floor(observed.buckets[-1][1]), 1 - QUANTILES[name])
    if name == "error_rate":
        return statistics.binomial_tail(math.floor(observed.errors), observed.requests, maximum)
    return 1 - statistics.NORMAL.cdf(_score(name, observed, maximum, -0.5))


def below_minimum(name: str, observed: ObservedCounts, minimum: float) -> float:
    """Return the p-value of "below the minimum"."""
    if name in QUANTILES:
        hits = math.ceil(statistics.count_above(observed.buckets, minimum / 1000))
        return 1 - statistics.binomial_tail(hits + 1, math.floor(observed.buckets[-1][1]), 1 - QUANTILES[name])
    if name == "error_rate":
        return 1 - statistics.binomial_tail(math.ceil(observed.errors) + 1, observed.requests, minimum)
    return statistics.NORMAL.cdf(_score(name, observed, minimum, 0.5))


def _score(name: str, observed: ObservedCounts, bound: float, half: float) -> float:
    """Return the distance from the bound in standard errors; `half` is the continuity correction of a count."""
    if name == "rps":
        expected = bound * observed.observed_s
        distance, error = observed.requests + half - expected, math.sqrt(expected)
    else:
        mean, error = statistics.mean_and_error(observed)
        distance = mean - bound / 1000
    return distance / error if error > 0 else math.copysign(math.inf, distance) if distance else 0.0


def worse_than_baseline(name: str, pairs: Sequence[VariantCounts], ratio: float) -> float:
    """Return the p-value of "worse than `ratio` times the baseline", over all strata."""
    if name in QUANTILES:
        buckets = [(canary.buckets, baseline.buckets) for canary, baseline in pairs]
        share = QUANTILES[name]
        return statistics.tail([statistics.exceedance_table(*each, share, ratio) for each in buckets if all(each)])
    if name == "error_rate":
        return statistics.tail(
            [statistics.ContingencyTable(a.errors, a.requests, b.errors, b.requests) for a, b in pairs], ratio
        )
    return 1 - statistics.NORMAL.cdf(_stratified_score(pairs, ratio))


def _stratified_score(pairs: Sequence[VariantCounts], ratio: float) -> float:
    """Return how many standard errors the mean lies above the bound; strata are weighted by inverse variance."""
    weighted, weights = 0.0, 0.0
    for canary, baseline in pairs:
        mean, standard_error = statistics.mean_and_error(canary)
        baseline_mean, baseline_error = statistics.mean_and_error(baseline)
        weight = 1 / max(standard_error**2 + (ratio * baseline_error) ** 2, MIN_VARIANCE)
        weighted, weights = weighted + weight * (mean - ratio * baseline_mean), weights + weight
    return weighted / math.sqrt(weights)
