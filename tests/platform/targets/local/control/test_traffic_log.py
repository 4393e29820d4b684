"""Percentiles, errors and load of a revision, from what the gateway reports each second."""

import pytest

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.control_link import BackendReport
from pilotlight.prometheus.histograms import latency_ms
from pilotlight.targets.local.control.service_state import TrafficLog


def report(requests: int = 0, errors: int = 0, concurrency: float = 0.0, **more: object) -> BackendReport:
    counts = [0] * (len(LATENCY_BUCKETS) + 1)
    counts[LATENCY_BUCKETS.index(0.005)] = requests
    known = {"waiting": 0, "in_flight": 0, "latencies": tuple(counts), **more}
    return BackendReport("default", "iris", "w", "r", concurrency, requests, errors, **known)  # type: ignore[arg-type]


def test_percentiles_are_interpolated_within_their_bucket() -> None:
    counts = [0] * (len(LATENCY_BUCKETS) + 1)
    counts[LATENCY_BUCKETS.index(0.01)] = 100  # between 5 and 10 ms
    assert latency_ms(counts, 0.5) == pytest.approx(7.5)
    assert latency_ms(counts, 0.99) == pytest.approx(9.95)


def test_what_lies_above_every_edge_is_told_as_the_last_edge() -> None:
    counts = [0] * len(LATENCY_BUCKETS) + [3]
    assert latency_ms(counts, 0.5) == LATENCY_BUCKETS[-1] * 1000


def test_nothing_asked_has_no_percentile_and_no_error_rate() -> None:
    log = TrafficLog()
    assert log.quantile_ms(0.5, 10.0) is None
    assert log.error_percent(10.0) is None


def test_errors_are_a_share_of_what_was_asked_and_both_are_forgotten_after_five_minutes() -> None:
    log = TrafficLog()
    log.report(report(90), 0.0)
    log.report(report(10, errors=5), 1.0)
    assert log.requests(2.0) == 100
    assert log.error_percent(2.0) == pytest.approx(5.0)
    assert log.requests(302.0) == 0


def test_a_second_without_a_report_counts_as_the_load_that_still_is_there() -> None:
    log = TrafficLog()
    log.report(report(4, concurrency=3.0, in_flight=2), 0.5)
    log.tick(1.0)
    log.tick(2.0)
    log.report(report(0, in_flight=0), 2.5)
    log.tick(3.0)
    log.tick(4.0)
    assert [sample.concurrency for sample in log.samples] == [3.0, 2.0, 2.0, 0.0]
    assert [sample.requests for sample in log.samples] == [4.0, 0.0, 0.0, 0.0]


def test_requests_that_wait_are_load_even_before_any_is_served() -> None:
    log = TrafficLog()
    log.waiting = 7
    log.tick(1.0)
    assert log.samples[-1].concurrency == 7.0


def test_samples_older_than_the_longest_window_are_forgotten() -> None:
    log = TrafficLog()
    for second in range(4000):
        log.tick(float(second))
    assert len(log.samples) <= 3601


def test_the_rate_is_of_the_last_ten_seconds() -> None:
    log = TrafficLog()
    log.report(report(500), 0.0)
    log.report(report(30), 15.0)
    log.report(report(20), 19.0)
    assert log.per_second(20.0) == pytest.approx(5.0)
    assert log.per_second(29.5) == 0.0


def test_the_last_use_is_that_of_the_last_request_not_of_its_report() -> None:
    log = TrafficLog()
    log.report(report(3, idle_s=0.75), 10.0)
    assert log.last_used == 9.25
    log.observe(0, 0, 4.0, 11.0)  # an older use than is known already
    assert log.last_used == 9.25
    log.observe(0, 1, 0.0, 11.0)
    assert (log.last_used, log.in_flight) == (11.0, 1)
