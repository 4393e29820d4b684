"""Whether hits fall on one side more often than chance has it: exact, for one table of counts or several together.

Given how many requests each side had and how many hits there were, chance spreads the hits over the two sides as a
hypergeometric law says (Fisher's test). Over several times, each with its own table, the canary's hits are summed up
and held against the sum that chance would have spread (Cochran, Mantel and Haenszel). So what slows both sides down at
one time, or other shares of the requests at another, is nobody's fault, and yet all times speak together.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Final, NamedTuple

LARGEST: Final = 10_000_000.0  # more is scaled down: it changes no verdict, and exact sums stay quick
NEGLIGIBLE: Final = 1e-20
MOST_TERMS: Final = 256  # of one law that is added to others; 15 standard deviations, so that one is 17 of them


class Table(NamedTuple):
    """Of one time: how many requests of each side, and which of them are hits."""

    hits: float
    total: float
    other_hits: float
    other_total: float


class Spread(NamedTuple):
    """The chances of `first` hits on this side, and of each one more."""

    first: int
    chances: Sequence[float]


NONE: Final = Spread(0, (1.0,))  # certainly no hit


def tail(tables: Sequence[Table], odds: float = 1.0) -> float:
    """The chance that at least so many of all hits fall on this side, if its odds of a hit are `odds` times those of
    the other side. 1 where there is nothing to tell it from."""
    most = max((each for table in tables for each in table), default=0.0)
    times = LARGEST / most if most > LARGEST else 1.0
    whole = [_whole(table, times) for table in tables]
    spreads = [_spread(ours, theirs, every, odds) for _, ours, theirs, every in whole]
    if not spreads:
        return 1.0
    # Rounded up to multiples of the width, hits look likelier than they are: never surer than the exact sum would be.
    width = math.ceil(max(len(each.chances) for each in spreads) / MOST_TERMS) if len(spreads) > 1 else 1
    *others, last = (_rounded(each, width) for each in spreads)
    return _at_least(sum(drawn for drawn, *_ in whole) // width, reduce(_added, others, NONE), last)


def _whole(table: Table, times: float) -> tuple[int, int, int, int]:
    """This side's hits, rounded down, its requests, the other's, and all hits, rounded up."""
    ours, theirs = math.floor(table.total * times), math.floor(table.other_total * times)
    drawn = min(math.floor(table.hits * times), ours)
    return drawn, ours, theirs, drawn + min(math.ceil(table.other_hits * times), theirs)


def _spread(ours: int, theirs: int, every: int, odds: float) -> Spread:
    """From the likeliest number of hits outwards, until nothing is left to add."""

    def growth(of: int) -> float:
        """The chance of one more hit here, as a multiple."""
        return odds * (ours - of) * (every - of) / ((of + 1.0) * (theirs - every + of + 1.0))

    first, last = max(0, every - theirs), min(ours, every)
    mode = first + last_that(last - first, lambda step: step == 0 or growth(first + step - 1) >= 1)
    above, below = [1.0], [1.0]
    for at in range(mode, last):
        if (chance := above[-1] * growth(at)) <= NEGLIGIBLE:
            break
        above.append(chance)
    for at in range(mode - 1, first - 1, -1):
        if (chance := below[-1] / growth(at)) <= NEGLIGIBLE:
            break
        below.append(chance)
    weights = [*reversed(below[1:]), *above]
    total = math.fsum(weights)
    return Spread(mode - len(below) + 1, [weight / total for weight in weights])


def _rounded(spread: Spread, width: int) -> Spread:
    if width == 1:
        return spread
    first = -(-spread.first // width)
    chances = [0.0] * (-(-(spread.first + len(spread.chances) - 1) // width) - first + 1)
    for place, chance in enumerate(spread.chances, spread.first):
        chances[-(-place // width) - first] += chance
    return Spread(first, chances)


def _at_least(wanted: int, one: Spread, other: Spread) -> float:
    """The chance that both together are no fewer, without the law of their sum: that takes as many steps squared."""
    beyond = [*accumulate(reversed(other.chances))]  # the chance of the highest number, of the two highest, and so on
    found = 0.0
    for place, chance in enumerate(one.chances, one.first):
        left = max(wanted - place - other.first, 0)  # of the lowest numbers are too few
        found += chance * beyond[-1 - left] if left < len(other.chances) else 0.0
    return min(found, 1.0)


def _added(one: Spread, other: Spread) -> Spread:
    """The law of the sum of two that do not depend on each other."""
    chances = [0.0] * (len(one.chances) + len(other.chances) - 1)
    for place, chance in enumerate(one.chances):
        for further, another in enumerate(other.chances):
            chances[place + further] += chance * another
    return Spread(one.first + other.first, chances)


def last_that(total: int, holds: Callable[[int], bool]) -> int:
    """The highest number up to `total` for which it holds; it holds for 0 and falls once."""
    low, high = 0, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
