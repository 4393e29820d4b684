"""Statistics of canaries: exact tests and intervals on counts of few requests, over one or more strata. Pure.

All work on histogram counts, without a library (scipy has 40 MB). A p-value is the probability of at least this much
harm when there is none.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from statistics import NormalDist
from typing import Final, Literal, NamedTuple

from pilotlight.canaries.canary_state import Canary, Measurement, StoredCounts, Stratum
from pilotlight.canaries.queries import ObservedCounts
from pilotlight.prometheus.histograms import Buckets, quantile

ALPHA: Final = 0.01
HALF_LIFE: Final = 20  # looks after which half of the budget is spent
SUSPICIOUS: Final = 0.1  # p-value: not significant, but too low to proceed
MAX_COUNT: Final = 10_000_000.0  # larger counts are scaled down: no verdict changes, and exact sums stay fast
NEGLIGIBLE: Final = 1e-20
MAX_TERMS: Final = 256  # of a convolved distribution; it spans 15 standard deviations, so one of them has 17 terms
NORMAL: Final = NormalDist()
CONFIDENCE: Final = 0.95  # of displayed intervals

Significance = Literal["significant", "suspicious", "insignificant"]
Interval = tuple[float, float]


class ContingencyTable(NamedTuple):
    """Requests of each variant in one stratum, and the hits among them."""

    hits: float
    total: float
    other_hits: float
    other_total: float


class Distribution(NamedTuple):
    """Probabilities of `first` hits, and of each one more."""

    first: int
    chances: Sequence[float]


class VariantCounts(NamedTuple):
    """Counts of both variants within the same window."""

    canary: ObservedCounts
    baseline: ObservedCounts


class EarlierStrata(NamedTuple):
    """Counts of earlier weights, and the number of looks until the last one ended.

    Requests are comparable only within one weight, where each had the same chance to reach either variant at any time.
    So every weight is a stratum of its own, and the evidence of one counts at the next.
    """

    pairs: Sequence[VariantCounts] = ()
    looks: int = 0


def next_look(history: Sequence[Measurement]) -> int:
    """Return the number of the next look, from 1."""
    return max((each.look for each in history), default=0) + 1


def alpha_spent(look: int, tests: int = 1) -> float:
    """Return the significance level of one of the tests of a look: 0.00048 at look 1, 0.000014 at look 100."""
    # Repeated tests of the same hypothesis find harm sooner or later by chance. So each look spends a part of one
    # budget, which its tests share. The parts are a telescoping sum, HALF_LIFE * (1 / (look + HALF_LIFE - 1) -
    # 1 / (look + HALF_LIFE)), so all looks add up to ALPHA; they decay slower than geometrically, so that late looks
    # keep some power. By the union bound a canary that is no worse than the baseline is ever failed with probability
    # at most ALPHA, however the windows of the looks overlap.
    # When a weight begins depends on earlier data, so each weight has its own part of the budget and counts its looks
    # anew. The strata of earlier weights are among its data. That is safe: a weight is left when its values look good,
    # so its stratum looks no worse than chance has it; a weight that is left otherwise leaves no stratum.
    return ALPHA * HALF_LIFE / ((look + HALF_LIFE - 1) * (look + HALF_LIFE)) / max(tests, 1)


def assess(p_value: float, look: int, tests: int) -> Significance:
    """Return the significance of a p-value at a look with this number of tests."""
    if p_value <= alpha_spent(look, tests):
        return "significant"
    return "suspicious" if p_value <= SUSPICIOUS else "insignificant"


def tail(tables: Sequence[ContingencyTable], odds: float = 1.0) -> float:
    """Return the p-value: the probability of at least the observed hits if the odds of a hit are `odds` times those of
    the other variant. 1 without data."""
    # With the totals of both variants and the number of hits fixed, chance distributes the hits by a hypergeometric law
    # (Fisher's exact test). Over several strata the hits of the canary are summed and compared with the distribution of
    # that sum (Cochran-Mantel-Haenszel, exact): a slow period that affects both variants is not attributed to either.
    largest = max((each for table in tables for each in table), default=0.0)
    scale = MAX_COUNT / largest if largest > MAX_COUNT else 1.0
    integers = [_to_integers(table, scale) for table in tables]
    distributions = [_hypergeometric(total, other_total, hits, odds) for _, total, other_total, hits in integers]
    if not distributions:
        return 1.0
    # Rounding hits up to multiples of the width only raises the p-value: the test stays conservative.
    width = math.ceil(max(len(each.chances) for each in distributions) / MAX_TERMS) if len(distributions) > 1 else 1
    *others, last = (_coarsen(each, width) for each in distributions)
    no_hits = Distribution(0, (1.0,))
    return _sum_tail(sum(drawn for drawn, *_ in integers) // width, reduce(_convolve, others, no_hits), last)


def _to_integers(table: ContingencyTable, scale: float) -> tuple[int, int, int, int]:
    """Return the hits of this variant rounded down, both totals, and all hits rounded up: both roundings are
    conservative."""
    total, other_total = math.floor(table.total * scale), math.floor(table.other_total * scale)
    hits = min(math.floor(table.hits * scale), total)
    return hits, total, other_total, hits + min(math.ceil(table.other_hits * scale), other_total)


def _hypergeometric(total: int, other_total: int, hits: int, odds: float) -> Distribution:
    """Return the noncentral hypergeometric distribution with these odds."""

    def ratio(of: int) -> float:
        """Return the probability of `of` + 1 hits relative to that of `of`."""
        return odds * (total - of) * (hits - of) / ((of + 1.0) * (other_total - hits + of + 1.0))

    # From the mode outwards with weights relative to it, until they are negligible: no factorials, no underflow.
    first, last = max(0, hits - other_total), min(total, hits)
    mode = first + last_true(last - first, lambda step: step == 0 or ratio(first + step - 1) >= 1)
    above, below = [1.0], [1.0]
    for count in range(mode, last):
        if (chance := above[-1] * ratio(count)) <= NEGLIGIBLE:
            break
        above.append(chance)
    for count in range(mode - 1, first - 1, -1):
        if (chance := below[-1] / ratio(count)) <= NEGLIGIBLE:
            break
        below.append(chance)
    weights = [*reversed(below[1:]), *above]
    norm = math.fsum(weights)
    return Distribution(mode - len(below) + 1, [weight / norm for weight in weights])


def _coarsen(distribution: Distribution, width: int) -> Distribution:
    if width == 1:
        return distribution
    first = -(-distribution.first // width)
    chances = [0.0] * (-(-(distribution.first + len(distribution.chances) - 1) // width) - first + 1)
    for count, chance in enumerate(distribution.chances, distribution.first):
        chances[-(-count // width) - first] += chance
    return Distribution(first, chances)


def _sum_tail(threshold: int, one: Distribution, other: Distribution) -> float:
    """Return the probability that the sum of both is at least `threshold`, without convolving them: linear instead of
    quadratic."""
    # Probability of the highest count, of the two highest, and so on.
    upper_tails = [*accumulate(reversed(other.chances))]
    probability = 0.0
    for count, chance in enumerate(one.chances, one.first):
        skipped = max(threshold - count - other.first, 0)  # lowest counts of `other` that are too few
        probability += chance * upper_tails[-1 - skipped] if skipped < len(other.chances) else 0.0
    return min(probability, 1.0)


def _convolve(one: Distribution, other: Distribution) -> Distribution:
    """Return the distribution of the sum of two independent counts."""
    chances = [0.0] * (len(one.chances) + len(other.chances) - 1)
    for index, chance in enumerate(one.chances):
        for other_index, other_chance in enumerate(other.chances):
            chances[index + other_index] += chance * other_chance
    return Distribution(one.first + other.first, chances)


def last_true(total: int, holds: Callable[[int], bool]) -> int:
    """Return the highest number up to `total` for which `holds` is true; it must hold for 0 and change once."""
    low, high = 0, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


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


def wilson(hits: float, total: float) -> Interval:
    """Return the Wilson score interval of a proportion: within [0, 1], and sensible with few or no hits."""
    if total <= 0:
        return 0.0, 1.0
    z = NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
    proportion, spread = hits / total, z * z / total
    center = proportion + spread / 2
    margin = z * math.sqrt(max(proportion * (1 - proportion) / total + spread / (4 * total), 0.0))
    return max((center - margin) / (1 + spread), 0.0), min((center + margin) / (1 + spread), 1.0)


def quantile_interval(buckets: Buckets, share: float) -> Interval:
    """Return the interval of a quantile; infinite if there are too few requests."""
    total = math.floor(min(buckets[-1][1], MAX_COUNT)) if buckets else 0
    # Order statistics: the number of requests below the quantile is binomial, whatever the distribution of latencies.
    rest = (1 - CONFIDENCE) / 2
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


def earlier_strata(canary: Canary) -> EarlierStrata:
    pairs = [VariantCounts(_observed(each.canary), _observed(each.baseline)) for each in canary.strata]
    return EarlierStrata(pairs, canary.weighed_looks)


def to_stratum(pair: VariantCounts) -> Stratum:
    return Stratum(_counts(pair.canary), _counts(pair.baseline))


def pooled(pairs: Sequence[VariantCounts]) -> VariantCounts:
    """Return the counts of the canary, and of the baseline weighted to as many requests at each weight."""
    # Unweighted, a slow period at a small weight would count for the baseline and hardly for the canary.
    if len(pairs) == 1:
        return pairs[0]
    weighted = [(pair.baseline, pair.canary.requests / pair.baseline.requests) for pair in pairs]
    return VariantCounts(_sum([(pair.canary, 1.0) for pair in pairs]), _sum(weighted))


def _sum(parts: Sequence[tuple[ObservedCounts, float]]) -> ObservedCounts:
    edges = sorted({edge for observed, _ in parts for edge, _ in observed.buckets})
    return ObservedCounts(
        requests=sum(factor * observed.requests for observed, factor in parts),
        errors=sum(factor * observed.errors for observed, factor in parts),
        buckets=tuple((edge, sum(factor * _below(each.buckets, edge) for each, factor in parts)) for edge in edges),
        seconds=sum(factor * observed.seconds for observed, factor in parts),
        observed_s=sum(observed.observed_s for observed, _ in parts),
    )


def _below(buckets: Buckets, edge: float) -> float:
    index = bisect_right(buckets, (edge, math.inf))
    return buckets[index - 1][1] if index else 0.0


def _counts(observed: ObservedCounts) -> StoredCounts:
    """Return the counts as stored. JSON has no infinity: the last bucket is left out, its count is `timed`."""
    finite = tuple((edge, count) for edge, count in observed.buckets if math.isfinite(edge))
    timed = observed.buckets[-1][1] if observed.buckets else 0.0
    return StoredCounts(observed.requests, observed.errors, observed.seconds, observed.observed_s, timed, finite)


def _observed(counts: StoredCounts) -> ObservedCounts:
    buckets = (*counts.below, (math.inf, counts.timed)) if counts.timed else ()
    return ObservedCounts(counts.requests, counts.errors, buckets, counts.seconds, counts.observed_s)
