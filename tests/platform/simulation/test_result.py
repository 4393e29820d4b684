"""Quantiles of the bounded histogram, and figures by name."""

import numpy as np
import pytest

from pilotlight.simulation.conditions import parse_condition
from pilotlight.simulation.exact import histogram
from pilotlight.simulation.result import LatencyHistogram, Simulation


def result(latency: LatencyHistogram, held: LatencyHistogram | None = None) -> Simulation:
    nothing = LatencyHistogram()
    return Simulation("iris", "exact", 60.0, latency, held or nothing, nothing, nothing)


def test_quantiles_are_those_of_the_samples() -> None:
    samples = np.random.default_rng(0).lognormal(-2, 1.5, 100_000)
    for share in (0.01, 0.5, 0.95, 0.99, 0.999):
        assert histogram(samples).quantile(share) == pytest.approx(np.quantile(samples, share), rel=0.005)
    assert histogram(samples).mean == pytest.approx(samples.mean())


def test_the_share_below_a_time_counts_each_request() -> None:
    half = histogram(np.array([0.1] * 50 + [3.0] * 50))
    assert half.share_below(1.0) == 0.5
    assert half.share_below(5.0) == 1.0
    seconds, shares = half.cdf()
    assert seconds == pytest.approx([0.1, 3.0])
    assert shares == [0.5, 1.0]


def test_requests_that_did_not_wait_count_as_held_for_no_time() -> None:
    simulated = result(histogram(np.full(100, 0.1)), histogram(np.full(4, 2.0)))
    assert simulated.figure("held_p95") == 0.0
    assert simulated.figure("held_p99") == pytest.approx(2.0)


def test_a_condition_says_why_it_does_not_hold() -> None:
    simulated = result(histogram(np.full(100, 0.25)))
    assert parse_condition("p99.9 < 300ms", "--assert").problem(simulated) == ""
    assert parse_condition("p99<200ms", "--assert").problem(simulated) == "p99 is 0.25 s, must be <200ms"
    assert "language model" in parse_condition("ttft_p95<1s", "--assert").problem(simulated)
