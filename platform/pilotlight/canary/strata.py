"""Strata: counts of both variants at each weight of a canary, stored with it and pooled. Pure.

Requests are comparable only within one weight, where each had the same chance to reach either variant at any time. So
every weight is a stratum of its own, and the evidence of one counts at the next.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from pilotlight.canary.model import Canary, StoredCounts, Stratum
from pilotlight.canary.queries import ObservedCounts
from pilotlight.histograms import Buckets


class VariantCounts(NamedTuple):
    """Counts of both variants within the same window."""

    canary: ObservedCounts
    baseline: ObservedCounts


class EarlierStrata(NamedTuple):
    """Counts of earlier weights, and the number of looks until the last one ended."""

    pairs: Sequence[VariantCounts] = ()
    looks: int = 0


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
