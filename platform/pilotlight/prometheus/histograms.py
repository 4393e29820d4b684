"""Quantiles of Prometheus histograms, for canary analysis, status and the PromQL evaluator."""

import math

Buckets = tuple[tuple[float, float], ...]  # upper bound in seconds and cumulative count; the last bound is infinite


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


def upper_bound(text: str) -> float:
    """Return the bound of an `le` label; NaN if it is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
