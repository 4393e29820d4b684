"""Generators: the same seed gives the same trace, rates are those that the options name, long traces are counts."""

import numpy as np
import pytest

from pilotlight.errors import UsageError
from pilotlight.simulation.trace import CountTrace, Trace
from pilotlight.simulation.traces.table import read_trace

SHORT = {
    "poisson:rate=20,duration=10m,seed=3": 12_000,
    "diurnal:rate=20,peak=35,period=5m,duration=10m,seed=3": 12_000,
    "bursts:rate=1,burst=100,every=1m,length=6s,duration=10m,seed=3": 6_540,
    "spikes:rate=10,peak=50,every=2m,decay=10s,duration=1h,seed=3": 51_000,
    "on-off:rate=30,on=10s,off=20s,duration=1h,seed=3": 36_000,
}


@pytest.mark.parametrize(("trace", "expected"), SHORT.items())
def test_a_generator_has_the_rate_of_its_options_and_repeats_with_its_seed(trace: str, expected: int) -> None:
    first, second, other = read_trace(trace), read_trace(trace), read_trace(trace.replace("seed=3", "seed=4"))
    assert isinstance(first, Trace)
    assert isinstance(second, Trace)
    assert first.requests == pytest.approx(expected, rel=0.25)  # phases and spikes are random themselves
    assert np.array_equal(first.arrivals, second.arrivals)
    assert first.requests != other.requests
    assert first.seconds in (600.0, 3600.0)


def test_the_day_has_its_peak_after_a_quarter(tmp_path: object) -> None:
    trace = read_trace("diurnal:rate=10,peak=20,duration=1d")
    assert isinstance(trace, Trace)
    hours = trace.counted(3600.0).counts[:24]
    assert 5 <= int(np.argmax(hours)) <= 6
    assert hours[17:19].max() < hours.max() / 20


def test_gaps_between_poisson_arrivals_are_exponential() -> None:
    trace = read_trace("poisson:rate=50,duration=20m")
    assert isinstance(trace, Trace)
    gaps = np.diff(trace.arrivals)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_a_week_of_many_requests_is_counted_by_the_second() -> None:
    trace = read_trace("poisson:rate=100,duration=7d,input=500,output=20")
    assert isinstance(trace, CountTrace)
    assert trace.bucket_seconds == 1.0
    assert trace.requests == pytest.approx(60_480_000, rel=0.001)
    assert trace.input_tokens is not None
    assert trace.input_tokens[0] == 500


def test_tokens_have_the_mean_of_the_options() -> None:
    trace = read_trace("poisson:rate=100,duration=5m,input=500,output=20")
    assert isinstance(trace, Trace)
    assert trace.input_tokens is not None
    assert trace.input_tokens.mean() == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("poisson:duration=1h", "rate is not given, must be a number"),
        ("poisson:rate=-1", "rate is -1, must be above 0"),
        ("poisson:rate=1,duration=soon", "duration is soon, must be a duration above 0, such as 90s, 1h or 7d"),
        ("poisson:rate=1,sed=1", "it has no option sed; there are .*; did you mean seed"),
        ("poisson:rate", "'rate' has no value, must be NAME=VALUE"),
        ("diurnal:rate=1,peak=5", "peak is 5, must be 1 to 2"),
        ("poison:rate=1", "there is no such file"),
    ],
)
def test_wrong_options_are_named(trace: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_trace(trace)
