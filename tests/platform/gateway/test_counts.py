"""What a backend's report says: averages over time, not samples, and nothing twice."""

import pytest

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.control_link import BackendReport
from pilotlight.gateway.proxy.backend import Counts

KEY = ("default", "iris")


def drained(counts: Counts, now: float, waiting: int = 0) -> BackendReport | None:
    return counts.take_report(KEY, "iris", "iris-1", waiting, now)


def test_concurrency_is_the_average_over_the_interval() -> None:
    counts = Counts(0.0)
    counts.enter(0.0)
    counts.enter(0.5)
    counts.responded(0.75, 200, sent_at=0.5)
    report = drained(counts, 1.0)
    assert report is not None
    assert report.concurrency == pytest.approx(1.0 + 0.25)  # one all the time, a second for a quarter
    assert (report.requests, report.in_flight) == (1, 1)


def test_what_lasts_beyond_a_report_counts_in_the_next_one_too() -> None:
    counts = Counts(0.0)
    counts.enter(0.5)
    first = drained(counts, 1.0)
    second = drained(counts, 2.0)
    assert first is not None
    assert second is not None
    assert (first.concurrency, second.concurrency) == (0.5, 1.0)
    assert (first.requests, second.requests) == (0, 0)


def test_an_idle_backend_has_nothing_to_tell() -> None:
    counts = Counts(0.0)
    counts.enter(0.1)
    counts.responded(0.2, 200, 0.1)
    assert drained(counts, 1.0) is not None
    assert drained(counts, 2.0) is None


def test_latencies_fall_into_the_buckets_of_the_contract() -> None:
    counts = Counts(0.0)
    for latency in (LATENCY_BUCKETS[0], 0.0006, 61.0):
        counts.enter(0.0)
        counts.responded(latency, 200, 0.0)
    report = drained(counts, 100.0)
    assert report is not None
    assert len(report.latencies) == len(LATENCY_BUCKETS) + 1
    assert (report.latencies[0], report.latencies[1], report.latencies[-1]) == (1, 1, 1)  # an edge is in its bucket


@pytest.mark.parametrize(("status", "errors"), [(200, 0), (404, 0), (499, 0), (500, 1), (503, 1), (0, 1)])
def test_errors_are_answers_from_500_on_and_none_at_all(status: int, errors: int) -> None:
    counts = Counts(0.0)
    counts.enter(0.0)
    counts.responded(0.1, status, 0.0)
    report = drained(counts, 1.0)
    assert report is not None
    assert report.errors == errors


def test_whoever_left_unanswered_counts_as_load_only() -> None:
    counts = Counts(0.0)
    counts.enter(0.0)
    counts.leave(0.5)
    report = drained(counts, 1.0)
    assert report is not None
    assert (report.concurrency, report.requests, report.errors) == (0.5, 0, 0)
