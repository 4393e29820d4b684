"""What both sides of a canary did at each of its shares: kept with it, and told together. Pure: for judge and steps.

Requests can be compared within one share only, in which each had the same chance to reach either side whatever the time
brought. So every share is a stratum of its own; what one of them hinted at counts at the next.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from pilotlight.canary.model import Canary, Counts, Stratum
from pilotlight.canary.queries import Observed
from pilotlight.histograms import Buckets


class Pair(NamedTuple):
    """Both sides over the very same time."""

    canary: Observed
    baseline: Observed


class Before(NamedTuple):
    """What is known from earlier shares, and how many looks there were until they ended."""

    pairs: Sequence[Pair] = ()
    looks: int = 0


def before(canary: Canary) -> Before:
    return Before(
        [Pair(_observed(each.canary), _observed(each.baseline)) for each in canary.strata], canary.weighed_looks
    )


def kept(pair: Pair) -> Stratum:
    return Stratum(_counts(pair.canary), _counts(pair.baseline))


def together(pairs: Sequence[Pair]) -> Pair:
    """All that the canary did, beside what the baseline would have done had it been asked just as often at each share.
    As it was asked, a bad time at a small share would count for the baseline and hardly for the canary."""
    if len(pairs) == 1:
        return pairs[0]
    scaled = [(pair.baseline, pair.canary.requests / pair.baseline.requests) for pair in pairs]
    return Pair(_sum([(pair.canary, 1.0) for pair in pairs]), _sum(scaled))


def _sum(parts: Sequence[tuple[Observed, float]]) -> Observed:
    requests, errors, seconds, observed_s = (
        sum(times * number for number, times in numbers)
        for numbers in (
            [(seen.requests, times) for seen, times in parts],
            [(seen.errors, times) for seen, times in parts],
            [(seen.seconds, times) for seen, times in parts],
            [(seen.observed_s, 1.0) for seen, _ in parts],
        )
    )
    edges = sorted({edge for seen, _ in parts for edge, _ in seen.buckets})
    below = tuple((edge, sum(times * _below(seen.buckets, edge) for seen, times in parts)) for edge in edges)
    return Observed(requests, errors, below, seconds, observed_s)


def _below(buckets: Buckets, edge: float) -> float:
    place = bisect_right(buckets, (edge, math.inf))
    return buckets[place - 1][1] if place else 0.0


def _counts(seen: Observed) -> Counts:
    """JSON has no infinity: the last edge is left out, and what it counts stands by itself."""
    finite = tuple((edge, count) for edge, count in seen.buckets if math.isfinite(edge))
    timed = seen.buckets[-1][1] if seen.buckets else 0.0
    return Counts(seen.requests, seen.errors, seen.seconds, seen.observed_s, timed, finite)


def _observed(counts: Counts) -> Observed:
    buckets = (*counts.below, (math.inf, counts.timed)) if counts.timed else ()
    return Observed(counts.requests, counts.errors, buckets, counts.seconds, counts.observed_s)
