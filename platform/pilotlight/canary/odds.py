"""Exact comparison of two variants: whether one has more hits than chance explains, over one or more strata.

With the totals of both variants and the number of hits fixed, chance distributes the hits by a hypergeometric law
(Fisher's exact test). Over several strata the hits of the canary are summed and compared with the distribution of that
sum (Cochran-Mantel-Haenszel, exact). So a slow period that affects both variants, or another traffic split, is not
attributed to either, and all strata contribute.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Final, NamedTuple

MAX_COUNT: Final = 10_000_000.0  # larger counts are scaled down: no verdict changes, and exact sums stay fast
NEGLIGIBLE: Final = 1e-20
MAX_TERMS: Final = (
    256  # of a distribution that is convolved; it spans 15 standard deviations, so one of them has 17 terms
)


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


ZERO_HITS: Final = Distribution(0, (1.0,))  # probability 1 of no hit


def tail(tables: Sequence[ContingencyTable], odds: float = 1.0) -> float:
    """Return the p-value: the probability of at least the observed hits if the odds of a hit are `odds` times those of
    the other variant. 1 without data."""
    largest = max((each for table in tables for each in table), default=0.0)
    scale = MAX_COUNT / largest if largest > MAX_COUNT else 1.0
    integers = [_to_integers(table, scale) for table in tables]
    distributions = [_hypergeometric(total, other_total, hits, odds) for _, total, other_total, hits in integers]
    if not distributions:
        return 1.0
    # Rounding hits up to multiples of the width only raises the p-value: the test stays conservative.
    width = math.ceil(max(len(each.chances) for each in distributions) / MAX_TERMS) if len(distributions) > 1 else 1
    *others, last = (_coarsen(each, width) for each in distributions)
    return _sum_tail(sum(drawn for drawn, *_ in integers) // width, reduce(_convolve, others, ZERO_HITS), last)


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
