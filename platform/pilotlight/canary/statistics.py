"""How sure one can be of figures that come from few requests: shares, quantiles, and what tells which side is slower.

Everything works on counts as a histogram keeps them and needs no library. Tests are exact where counts allow it: a
p-value is the chance to see at least so much harm when there is none. odds.py holds two sides against each other,
sequential.py says what p-value is enough.
"""

import math
from statistics import NormalDist
from typing import Final

from pilotlight.canary.odds import LARGEST, NEGLIGIBLE, Table, last_that
from pilotlight.canary.queries import Observed
from pilotlight.histograms import Buckets, quantile

NORMAL: Final = NormalDist()
CONFIDENCE: Final = 0.95  # of the intervals that people are shown

Interval = tuple[float, float]


def above(buckets: Buckets, seconds: float) -> float:
    """How many requests took longer. Latencies are nearly log-normal: between two edges, the z-score of the share is
    taken as linear in the logarithm of the time."""
    total = buckets[-1][1] if buckets else 0.0
    low, below = 0.0, 0.0
    for edge, count in buckets:
        if math.isclose(edge, seconds, rel_tol=1e-9):
            return total - count
        if edge > seconds:
            longer = (1 - below / total, 1 - count / total)
            return 0.0 if math.isinf(edge) else total * _between((low, edge), longer, seconds, total)
        low, below = edge, count
    return 0.0


def _between(edges: Interval, longer: Interval, seconds: float, total: float) -> float:
    """The share above `seconds`, from those above the edges on its two sides."""
    low, high = edges
    if high <= 0:
        return longer[0]
    if low <= 0:
        return longer[0] + (longer[1] - longer[0]) * seconds / high
    least = min(0.5 / total, 0.5)
    first, last = (NORMAL.inv_cdf(min(max(share, least), 1 - least)) for share in longer)
    inside = math.log(seconds / low) / math.log(high / low)
    return min(max(NORMAL.cdf(first + (last - first) * inside), longer[1]), longer[0])


def wilson(hits: float, total: float, confidence: float = CONFIDENCE) -> Interval:
    """Of a share: never below 0 or above 1, and sensible with few or no hits."""
    if total <= 0:
        return 0.0, 1.0
    z = NORMAL.inv_cdf((1 + confidence) / 2)
    share, spread = hits / total, z * z / total
    middle = share + spread / 2
    reach = z * math.sqrt(max(share * (1 - share) / total + spread / (4 * total), 0.0))
    return max((middle - reach) / (1 + spread), 0.0), min((middle + reach) / (1 + spread), 1.0)


def quantile_interval(buckets: Buckets, share: float, confidence: float = CONFIDENCE) -> Interval:
    """By order statistics: how many of n requests lie below the quantile is binomial. Infinite where n is too small."""
    total = math.floor(min(buckets[-1][1], LARGEST)) if buckets else 0
    rest = (1 - confidence) / 2
    lowest = last_that(total, lambda rank: binomial_tail(rank, total, share) >= 1 - rest)
    highest = last_that(total, lambda rank: binomial_tail(rank, total, share) > rest) + 1
    low = quantile(buckets, lowest / total) if lowest > 0 else 0.0
    high = quantile(buckets, highest / total) if total and highest <= total else math.inf
    return low or 0.0, math.inf if high is None else high


def mean_and_error(seen: Observed) -> tuple[float, float]:
    """Mean seconds and its standard error; within a bucket, times are taken as spread evenly."""
    total, squares, low, below = 0.0, 0.0, 0.0, 0.0
    for edge, count in seen.buckets:
        high = low if math.isinf(edge) else edge
        total += (count - below) * (low + high) / 2
        squares += (count - below) * (low * low + low * high + high * high) / 3
        low, below = high, count
    counted = max(below, 1.0)
    variance = max(squares / counted - (total / counted) ** 2, 0.0)
    return seen.seconds / seen.timed, math.sqrt(variance / seen.timed)


def binomial_tail(hits: float, total: float, share: float) -> float:
    """The chance of at least so many hits among `total`, each with the chance `share`."""
    hits, total = _scaled(hits, total)
    if hits <= 0 or share >= 1:
        return 1.0
    if share <= 0 or hits > total:
        return 0.0
    return _beta(share, hits, total - hits + 1)


def exceeding(canary: Buckets, baseline: Buckets, share: float, ratio: float) -> Table:
    """What tells whether the canary's quantile is above `ratio` times the baseline's.

    Requests above an edge are counted: of the canary above t, of the baseline above t / ratio. Were the canary just
    `ratio` times slower, both shares would be equal. t is the edge nearest to the quantile of both sides together.
    """
    ours, theirs = canary[-1][1], baseline[-1][1]
    best, counts = math.inf, (0.0, 0.0)
    for edge, count in canary:
        found = (ours - count, above(baseline, edge / ratio))
        away = abs(_logit(sum(found) / (ours + theirs)) - _logit(1 - share))
        best, counts = (away, found) if away < best else (best, counts)
    return Table(counts[0], ours, counts[1], theirs)


def _logit(share: float) -> float:
    return math.log(max(share, NEGLIGIBLE) / max(1 - share, NEGLIGIBLE))


def _scaled(hits: float, total: float) -> Interval:
    return (hits * LARGEST / total, LARGEST) if total > LARGEST else (hits, total)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction on the side where that is quick."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return min(max(math.exp(front) / (a * _fraction(x, a, b)), 0.0), 1.0)


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's method, until another term changes nothing."""
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
