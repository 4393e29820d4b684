"""Shares, quantiles and exact tests, held against sums that can be checked by hand."""

import math
from fractions import Fraction
from statistics import NormalDist

import pytest

from pilotlight.canaries import statistics
from pilotlight.canaries.queries import ObservedCounts
from pilotlight.canaries.statistics import tail
from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.prometheus.histograms import Buckets, quantile
from pilotlight.targets.local.scaling.promql.evaluator import quantiles


def histogram(*counts: float) -> Buckets:
    """So many within each of the first edges of ours; the last of them above all."""
    edges, below, found = (*LATENCY_BUCKETS, math.inf), 0.0, []
    padded = [*counts[:-1], *[0.0] * (len(edges) - len(counts)), counts[-1]]
    for edge, count in zip(edges, padded, strict=True):
        below += count
        found.append((edge, below))
    return tuple(found)


def log_normal(median: float, spread: float, total: float) -> Buckets:
    law = NormalDist(math.log(median), spread)
    return (*((edge, round(total * law.cdf(math.log(edge)))) for edge in LATENCY_BUCKETS), (math.inf, total))


def slower(canary: Buckets, baseline: Buckets, share: float, ratio: float) -> float:
    return tail([statistics.exceedance_table(canary, baseline, share, ratio)])


def binomial(hits: int, total: int, share: Fraction) -> float:
    terms = (math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(hits, total + 1))
    return float(sum(terms, Fraction(0)))


@pytest.mark.parametrize(
    ("hits", "total", "share"), [(1, 10, "1/100"), (3, 10, "3/10"), (9, 80, "1/50"), (40, 60, "1/2")]
)
def test_the_tail_of_a_binomial_is_exact(hits: int, total: int, share: str) -> None:
    assert statistics.binomial_tail(hits, total, float(Fraction(share))) == pytest.approx(
        binomial(hits, total, Fraction(share)), rel=1e-9
    )


def test_the_tail_of_a_binomial_has_ends() -> None:
    assert statistics.binomial_tail(0, 10, 0.5) == 1.0
    assert statistics.binomial_tail(11, 10, 0.5) == 0.0
    assert statistics.binomial_tail(1, 10, 0.0) == 0.0
    assert statistics.binomial_tail(1, 10, 1.0) == 1.0


def test_huge_counts_are_judged_as_quickly_as_small_ones() -> None:
    assert statistics.binomial_tail(1e13, 1e15, 0.01) == pytest.approx(0.5, abs=1e-2)


def test_a_wilson_interval_is_what_the_books_have() -> None:
    low, high = statistics.wilson(1, 10)
    assert (low, high) == (pytest.approx(0.0179, abs=1e-4), pytest.approx(0.4042, abs=1e-4))
    assert statistics.wilson(0, 50)[0] == 0.0
    assert statistics.wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("counts", [(1, 0), (3, 5, 0), (0, 0, 7, 2), (0, 10, 0, 5, 1), (0, 0, 4)])
def test_a_quantile_is_what_prometheus_computes(counts: tuple[float, ...], share: float) -> None:
    buckets = histogram(*counts)
    vector = {(("le", str(edge)),): count for edge, count in buckets}
    (theirs,) = quantiles(share, vector).values()
    ours = quantile(buckets, share)
    assert ours == pytest.approx(theirs, nan_ok=True) or (share == 0.0 and ours is not None)


def test_nothing_has_no_quantile() -> None:
    assert quantile((), 0.5) is None
    assert quantile(histogram(0, 0), 0.5) is None


def test_the_interval_of_a_quantile_narrows_with_requests_and_is_open_with_few() -> None:
    few, many = (statistics.quantile_interval(log_normal(0.06, 0.5, n), 0.99) for n in (50, 50_000))
    truth = 0.06 * math.exp(2.326 * 0.5)
    assert few[0] < truth < few[1]
    assert few[1] == math.inf
    assert many[0] < truth * 1.05
    assert many[1] - many[0] < 0.02


def test_the_interval_of_a_median_is_that_of_order_statistics() -> None:
    """Of 100 requests the 40th and the 61st: the rank is binomial with 95 %."""
    edges = tuple((edge / 1000, float(edge)) for edge in range(1, 101))
    low, high = statistics.quantile_interval((*edges, (math.inf, 100.0)), 0.5)
    assert (low, high) == (pytest.approx(0.040), pytest.approx(0.061))


@pytest.mark.parametrize("seconds", [0.0005, 0.04, 0.06, 0.083, 0.1, 0.17, 0.21, 0.28, 0.4])
def test_between_two_edges_log_normal_latencies_are_counted_right(seconds: float) -> None:
    buckets = log_normal(0.06, 0.5, 1_000_000)
    truth = 1 - NormalDist(math.log(0.06), 0.5).cdf(math.log(seconds))
    assert statistics.count_above(buckets, seconds) / 1e6 == pytest.approx(truth, rel=0.02, abs=1e-5)


def test_above_the_last_edge_and_of_nothing_nothing_is_known() -> None:
    assert statistics.count_above(histogram(1, 5), 60.0) == 5
    assert statistics.count_above(histogram(1, 5), 61.0) == 0.0
    assert statistics.count_above((), 1.0) == 0.0


@pytest.mark.parametrize("median", [0.0004, 0.004, 0.06, 0.4, 3.0])
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_the_same_latencies_are_never_slower_and_much_longer_ones_always(median: float, share: float) -> None:
    baseline = log_normal(median, 0.5, 20_000)
    assert slower(log_normal(median, 0.5, 5_000), baseline, share, 1.2) > 0.2
    assert slower(log_normal(median * 2, 0.5, 5_000), baseline, share, 1.2) < 1e-6


def test_the_same_latencies_in_one_bucket_are_never_slower() -> None:
    for place in range(len(LATENCY_BUCKETS)):
        counts = [0.0] * place + [1000.0]
        one = histogram(*counts, 0.0)
        assert slower(one, one, 0.99, 1.0) > 0.4
        assert slower(one, one, 0.5, 1.2) > 0.4


def test_a_mean_comes_with_its_error_rather_too_large_than_too_small() -> None:
    buckets = log_normal(0.06, 0.5, 10_000)
    mean, error = statistics.mean_and_error(ObservedCounts(10_000, 0, buckets, 10_000 * 0.06 * math.exp(0.125), 60))
    assert mean == pytest.approx(0.068, rel=0.01)
    truth = 0.06 * math.exp(0.125) * math.sqrt(math.exp(0.25) - 1) / 100
    assert truth < error < 1.3 * truth
