"""Built-in metrics of a revision from its counts: value, confidence interval, p-values against bounds and baseline."""

import math
from collections.abc import Sequence
from typing import Final

from pilotlight.canary import odds, statistics
from pilotlight.canary.checks import QUANTILES
from pilotlight.canary.queries import ObservedCounts
from pilotlight.canary.strata import VariantCounts
from pilotlight.histograms import quantile

# Metrics with tests that are exact for any number of requests; the others are asymptotic.
EXACT_TESTS = frozenset({*QUANTILES, "error_rate"})
MIN_VARIANCE: Final = 1e-18  # of a mean in seconds²: if all requests are in one bucket of width 0


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
        return odds.tail([statistics.exceedance_table(*each, share, ratio) for each in buckets if all(each)])
    if name == "error_rate":
        return odds.tail([odds.ContingencyTable(a.errors, a.requests, b.errors, b.requests) for a, b in pairs], ratio)
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
