"""Quantiles of Prometheus histograms, for canary analysis, status and the PromQL evaluator."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from pilotlight.contract import LATENCY_BUCKETS

Buckets = tuple[tuple[float, float], ...]  # upper bound in seconds and cumulative count; the last bound is infinite
_LATENCY_EDGES: Final = (*LATENCY_BUCKETS, math.inf)


def quantile(buckets: Buckets, q: float) -> float | None:
    """Return a quantile in seconds as histogram_quantile does: linear within a bucket, up to the last finite bound."""
    total = buckets[-1][1] if buckets else 0.0
    if not total > 0:
        return None
    rank, low, below = q * total, min(0.0, buckets[0][0]), 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return low if math.isinf(bound) else low + (bound - low) * ((rank - below) / (count - below))
        low, below = bound, count
    return low


def latency_ms(counts: Sequence[int], q: float) -> float | None:
    """Return a quantile in milliseconds; `counts` has one entry per LATENCY_BUCKETS and one for +Inf."""
    seconds = quantile(tuple(zip(_LATENCY_EDGES, accumulate(counts), strict=False)), q)
    return None if seconds is None else seconds * 1000


def upper_bound(text: str) -> float:
    """Return the bound of an `le` label; NaN if it is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
