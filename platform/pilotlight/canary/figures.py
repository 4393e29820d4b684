"""Each figure of METRICS from the counts of one revision: its value, how sure it is, and how sure its harm is.

Between statistics, which knows counts, and judge, which knows policies.
"""

import math
from collections.abc import Sequence
from typing import Final

from pilotlight.canary import odds, statistics
from pilotlight.canary.checks import QUANTILES
from pilotlight.canary.queries import Observed
from pilotlight.canary.strata import Pair
from pilotlight.histograms import quantile

# Tests that hold for any number of requests; the others are right for many only.
EXACT = frozenset({*QUANTILES, "error_rate"})
LEAST_VARIANCE: Final = 1e-18  # of a mean in seconds: where all requests are in one bucket without a width


def value(name: str, seen: Observed) -> float | None:
    """In the unit of its name; None where the counts do not tell."""
    if name in QUANTILES:
        found = quantile(seen.buckets, QUANTILES[name])
        return None if found is None else found * 1000
    if name == "rps":
        return seen.requests / seen.observed_s if seen.observed_s > 0 else None
    return seen.errors / seen.requests if name == "error_rate" else 1000 * seen.seconds / seen.timed


def interval(name: str, seen: Observed) -> tuple[float | None, float | None]:
    """Where it lies with 95 % confidence; None for no end."""
    if name in QUANTILES:
        low, high = statistics.quantile_interval(seen.buckets, QUANTILES[name])
        return low * 1000, high * 1000 if math.isfinite(high) else None
    if name == "error_rate":
        return statistics.wilson(seen.errors, seen.requests)
    reach = statistics.NORMAL.inv_cdf((1 + statistics.CONFIDENCE) / 2)
    if name == "rps":
        middle, error = seen.requests, math.sqrt(seen.requests)
        scale = 1 / seen.observed_s if seen.observed_s > 0 else 0.0
    else:
        (middle, error), scale = statistics.mean_and_error(seen), 1000.0
    return max(middle - reach * error, 0.0) * scale, (middle + reach * error) * scale


def above_maximum(name: str, seen: Observed, maximum: float) -> float:
    """P-value of "it is above": the chance to see so much if it were just there."""
    if name in QUANTILES:
        hits = math.floor(statistics.above(seen.buckets, maximum / 1000))
        return statistics.binomial_tail(hits, math.floor(seen.buckets[-1][1]), 1 - QUANTILES[name])
    if name == "error_rate":
        return statistics.binomial_tail(math.floor(seen.errors), seen.requests, maximum)
    return 1 - statistics.NORMAL.cdf(_score(name, seen, maximum, -0.5))


def below_minimum(name: str, seen: Observed, minimum: float) -> float:
    """P-value of "it is below"."""
    if name in QUANTILES:
        hits = math.ceil(statistics.above(seen.buckets, minimum / 1000))
        return 1 - statistics.binomial_tail(hits + 1, math.floor(seen.buckets[-1][1]), 1 - QUANTILES[name])
    if name == "error_rate":
        return 1 - statistics.binomial_tail(math.ceil(seen.errors) + 1, seen.requests, minimum)
    return statistics.NORMAL.cdf(_score(name, seen, minimum, 0.5))


def _score(name: str, seen: Observed, bound: float, half: float) -> float:
    """How many standard errors the figure lies above the bound."""
    if name == "rps":
        expected = bound * seen.observed_s
        away, error = seen.requests + half - expected, math.sqrt(expected)
    else:
        mean, error = statistics.mean_and_error(seen)
        away = mean - bound / 1000
    return away / error if error > 0 else math.copysign(math.inf, away) if away else 0.0


def worse(name: str, pairs: Sequence[Pair], ratio: float) -> float:
    """P-value of "the canary is more than `ratio` times worse than the baseline", over all shares together."""
    if name in QUANTILES:
        timed = [each for each in pairs if each.canary.buckets and each.baseline.buckets]
        share = QUANTILES[name]
        return odds.tail([statistics.exceeding(ours.buckets, theirs.buckets, share, ratio) for ours, theirs in timed])
    if name == "error_rate":
        tables = (odds.Table(ours.errors, ours.requests, theirs.errors, theirs.requests) for ours, theirs in pairs)
        return odds.tail([*tables], ratio)
    return 1 - statistics.NORMAL.cdf(_apart(pairs, ratio))


def _apart(pairs: Sequence[Pair], ratio: float) -> float:
    """How many standard errors the canary's mean lies above the bound, each share weighed by how sure it is."""
    weighed, weights = 0.0, 0.0
    for canary, baseline in pairs:
        ours, error = statistics.mean_and_error(canary)
        theirs, other = statistics.mean_and_error(baseline)
        weight = 1 / max(error**2 + (ratio * other) ** 2, LEAST_VARIANCE)
        weighed, weights = weighed + weight * (ours - ratio * theirs), weights + weight
    return weighed / math.sqrt(weights)
