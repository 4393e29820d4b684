"""Traces: order, lengths, and the way between requests and counts."""

import numpy as np
import pytest

from pilotlight.errors import UsageError
from pilotlight.simulation.trace import CountTrace, Trace, TraceError


def test_requests_that_are_not_in_order_are_refused() -> None:
    with pytest.raises(UsageError, match="earlier than the request before it"):
        Trace(np.array([1.0, 0.5]))


def test_each_request_has_a_service_time() -> None:
    with pytest.raises(UsageError, match="service_times has 1 entries, must have 2"):
        Trace(np.array([0.0, 1.0]), np.array([0.1]))


def test_requests_are_counted_by_bucket_and_spread_again() -> None:
    trace = Trace(np.array([0.1, 0.2, 2.5]), np.array([1.0, 3.0, 5.0]), duration=4.0)
    counted = trace.counted(1.0)
    assert counted.counts.tolist() == [2, 0, 1, 0, 0]
    assert counted.service_times is not None
    assert counted.service_times[[0, 2]].tolist() == [2.0, 5.0]
    spread = counted.expanded(seed=1)
    assert spread.counted(1.0).counts[:3].tolist() == [2, 0, 1]


def test_a_bucket_cannot_have_a_negative_count() -> None:
    with pytest.raises(UsageError, match="-1 requests"):
        CountTrace(60.0, np.array([3, -1]))


def test_an_error_names_file_and_line() -> None:
    assert str(TraceError("trace.csv", 12, "duration is -1")) == "trace.csv:12: duration is -1"
