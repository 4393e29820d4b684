"""Intervals and tests on counts of few requests: proportions, quantiles, means.

All work on histogram counts, without a library (scipy has 40 MB). Tests are exact where counts allow it: a p-value is
the probability of at least this much harm when there is none.
"""

import math
from statistics import NormalDist
from typing import Final

from pilotlight.canary.odds import MAX_COUNT, NEGLIGIBLE, ContingencyTable, last_true
from pilotlight.canary.queries import ObservedCounts
from pilotlight.histograms import Buckets, quantile

NORMAL: Final = NormalDist()
CONFIDENCE: Final = 0.95  # of displayed intervals

Interval = tuple[float, float]


def count_above(buckets: Buckets, seconds: float) -> float:
    """Return how many requests took longer, interpolated within a bucket."""
    total = buckets[-1][1] if buckets else 0.0
    low, below = 0.0, 0.0
    for edge, count in buckets:
        if math.isclose(edge, seconds, rel_tol=1e-9):
            return total - count
        if edge > seconds:
            tails = (1 - below / total, 1 - count / total)
            return 0.0 if math.isinf(edge) else total * _interpolate((low, edge), tails, seconds, total)
        low, below = edge, count
    return 0.0


def _interpolate(edges: Interval, tails: Interval, seconds: float, total: float) -> float:
    """Return the fraction above `seconds`, from the fractions above the two edges (`tails`)."""
    low, high = edges
    if high <= 0:
        return tails[0]
    if low <= 0:
        return tails[0] + (tails[1] - tails[0]) * seconds / high
    # Latencies are nearly log-normal: between two edges the z-score of the fraction is linear in the logarithm of the
    # time. Fractions of 0 and 1 have no z-score; half a request stands for them.
    smallest = min(0.5 / total, 0.5)
    first, last = (NORMAL.inv_cdf(min(max(share, smallest), 1 - smallest)) for share in tails)
    position = math.log(seconds / low) / math.log(high / low)
    return min(max(NORMAL.cdf(first + (last - first) * position), tails[1]), tails[0])


def wilson(hits: float, total: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the Wilson score interval of a proportion: within [0, 1], and sensible with few or no hits."""
    if total <= 0:
        return 0.0, 1.0
    z = NORMAL.inv_cdf((1 + confidence) / 2)
    proportion, spread = hits / total, z * z / total
    center = proportion + spread / 2
    margin = z * math.sqrt(max(proportion * (1 - proportion) / total + spread / (4 * total), 0.0))
    return max((center - margin) / (1 + spread), 0.0), min((center + margin) / (1 + spread), 1.0)


def quantile_interval(buckets: Buckets, share: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of a quantile; infinite if there are too few requests."""
    total = math.floor(min(buckets[-1][1], MAX_COUNT)) if buckets else 0
    # Order statistics: the number of requests below the quantile is binomial, whatever the distribution of latencies.
    rest = (1 - confidence) / 2
    lowest = last_true(total, lambda rank: binomial_tail(rank, total, share) >= 1 - rest)
    highest = last_true(total, lambda rank: binomial_tail(rank, total, share) > rest) + 1
    low = quantile(buckets, lowest / total) if lowest > 0 else 0.0
    high = quantile(buckets, highest / total) if total and highest <= total else math.inf
    return low or 0.0, math.inf if high is None else high


def mean_and_error(observed: ObservedCounts) -> tuple[float, float]:
    """Return the mean in seconds and its standard error."""
    total, squares, low, below = 0.0, 0.0, 0.0, 0.0
    for edge, count in observed.buckets:
        high = low if math.isinf(edge) else edge
        total += (count - below) * (low + high) / 2
        # Uniform within the bucket: the mean of x² over [low, high].
        squares += (count - below) * (low * low + low * high + high * high) / 3
        low, below = high, count
    counted = max(below, 1.0)
    variance = max(squares / counted - (total / counted) ** 2, 0.0)
    return observed.seconds / observed.timed, math.sqrt(variance / observed.timed)


def binomial_tail(hits: float, total: float, share: float) -> float:
    """Return the probability of at least `hits` among `total`, each with probability `share`."""
    if total > MAX_COUNT:
        hits, total = hits * MAX_COUNT / total, MAX_COUNT
    if hits <= 0 or share >= 1:
        return 1.0
    if share <= 0 or hits > total:
        return 0.0
    return _beta(share, hits, total - hits + 1)


def exceedance_table(canary: Buckets, baseline: Buckets, share: float, ratio: float) -> ContingencyTable:
    """Return the table that tests whether a quantile of the canary is above `ratio` times that of the baseline."""
    # Count requests of the canary above an edge t, and of the baseline above t / ratio: if the canary is exactly
    # `ratio` times slower, both fractions are equal. t is the edge nearest to the pooled quantile, in log-odds, since
    # fractions near 0 and 1 differ little; it depends on pooled counts only, not on which variant is slower.
    total, baseline_total = canary[-1][1], baseline[-1][1]
    best, counts = math.inf, (0.0, 0.0)
    for edge, count in canary:
        above = (total - count, count_above(baseline, edge / ratio))
        distance = abs(_logit(sum(above) / (total + baseline_total)) - _logit(1 - share))
        best, counts = (distance, above) if distance < best else (best, counts)
    return ContingencyTable(counts[0], total, counts[1], baseline_total)


def _logit(share: float) -> float:
    return math.log(max(share, NEGLIGIBLE) / max(1 - share, NEGLIGIBLE))


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction on the side where it converges
    fast."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return min(max(math.exp(front) / (a * _fraction(x, a, b)), 0.0), 1.0)


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction by Lentz's method, until another term changes nothing."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 20_000):
        half = step // 2
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return value
