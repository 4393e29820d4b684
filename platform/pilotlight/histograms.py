"""Quantiles from the counts of a histogram, as Prometheus keeps them. For canaries and for what people are shown."""

import math

Buckets = tuple[tuple[float, float], ...]  # upper edge in seconds and requests up to it; the last edge is infinite


def quantile(buckets: Buckets, share: float) -> float | None:
    """Seconds, as histogram_quantile gives them: linear within a bucket, the last edge for what lies above all."""
    total = buckets[-1][1] if buckets else 0.0
    if not total > 0:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for edge, count in buckets:
        if count >= rank and count > below:
            return low if math.isinf(edge) else low + (edge - low) * (rank - below) / (count - below)
        low, below = edge, count
    return low
