"""Downsampling keeps what happened, and a gap is a gap."""

import pytest

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.errors import UsageError
from pilotlight.targets.local.history.points import (
    RESOLUTIONS,
    Point,
    Run,
    Samples,
    Series,
    columns,
    downsample,
    missed,
    resolution,
    service_history,
)

NOON = 1_700_000_100 - 1_700_000_100 % 300  # the start of an interval of every resolution
IRIS = Series("default", "iris", "iris-predictor", "iris-predictor-1")
NEXT = Series("default", "iris", "iris-predictor", "iris-predictor-2")
INNER = Series("default", "iris", "iris-transformer", "iris-transformer-1")
ALWAYS = (Run(0, NOON + 10**6),)


def latencies(**counts: int) -> tuple[int, ...]:
    """Requests by upper edge in milliseconds: `ms5=3`."""
    edges = {f"ms{1000 * edge:g}": number for number, edge in enumerate(LATENCY_BUCKETS)}
    found = [0] * (len(LATENCY_BUCKETS) + 1)
    for name, count in counts.items():
        found[edges[name]] = count
    return tuple(found)


def test_counts_add_up_and_levels_keep_their_maximum() -> None:
    samples: list[tuple[int, Samples]] = [
        (NOON, {IRIS: Point(10, 1, 1, waiting=3, ready=0, starting=1)}),
        (NOON + 5, {IRIS: Point(20, 0, 0, waiting=0, ready=2, gpu_bytes=7)}),
        (NOON + 60, {IRIS: Point(5, ready=1)}),
    ]
    merged = downsample(samples, 60)
    assert merged[NOON][IRIS] == Point(30, 1, 1, (), 3, 2, 1, 7)
    assert merged[NOON + 60][IRIS] == Point(5, ready=1)


def test_a_quantile_of_a_minute_is_one_of_all_its_requests_and_no_mean_of_quantiles() -> None:
    slow = Point(1, latencies=latencies(ms1000=1))
    quick = Point(999, latencies=latencies(ms5=999))
    minute = downsample([(NOON, {IRIS: slow}), (NOON + 5, {IRIS: quick})], 60)[NOON][IRIS]
    drawn = columns({NOON: minute}, [NOON], 60, ALWAYS, 0)
    assert drawn.p99_ms[0] is not None
    assert drawn.p99_ms[0] <= 5.0
    assert minute.requests == 1000


@pytest.mark.parametrize("order", [(5, 60, 300), (5, 300)])
def test_five_minutes_are_the_same_by_way_of_minutes_or_directly(order: tuple[int, ...]) -> None:
    rows: dict[int, Samples] = {NOON + 5 * n: {IRIS: Point(n, n % 2, waiting=n % 7, ready=n % 3)} for n in range(60)}
    for step in order[1:]:
        rows = dict(downsample(rows.items(), step))
    assert rows == {NOON: {IRIS: Point(sum(range(60)), 30, waiting=6, ready=2)}}


def test_no_point_is_zero_while_the_platform_ran_and_nothing_while_it_did_not() -> None:
    runs = (Run(NOON, NOON + 10), Run(NOON + 20, NOON + 30))
    times = range(NOON, NOON + 30, 5)
    drawn = columns({NOON: Point(10, ready=1)}, times, 5, runs, since=0)
    assert drawn.ready == (1, 0, None, None, 0, 0)
    assert drawn.requests_per_second == (2.0, 0.0, None, None, 0.0, 0.0)
    assert drawn.p99_ms == (None,) * 6
    assert drawn.error_percent == (0.0, None, None, None, None, None)
    assert drawn.gpu_bytes == ()


def test_before_a_service_existed_there_is_nothing() -> None:
    drawn = columns({}, range(NOON, NOON + 20, 5), 5, ALWAYS, since=NOON + 11)
    assert drawn.ready == (None, None, 0, 0)


def test_the_rate_of_an_interval_that_has_not_ended_is_of_the_part_that_has_passed() -> None:
    drawn = columns({NOON: Point(30)}, [NOON], 60, (Run(NOON - 600, NOON + 15),), 0)
    assert drawn.requests_per_second == (2.0,)


def test_requests_between_components_are_not_those_of_clients_but_their_replicas_count() -> None:
    intervals: dict[int, Samples] = {NOON: {IRIS: Point(10, ready=1), INNER: Point(10, 10, waiting=4, ready=2)}}
    told = service_history(intervals, RESOLUTIONS[0], Run(NOON, NOON + 5), ALWAYS, 0, {"iris-predictor"})
    assert told.service.requests_per_second == (2.0,)
    assert (told.service.ready, told.service.error_percent, told.service.waiting) == ((3,), (0.0,), (0,))


def test_a_revision_begins_with_its_first_point_and_is_zero_after_its_last() -> None:
    intervals: dict[int, Samples] = {
        NOON: {IRIS: Point(ready=1)},
        NOON + 5: {IRIS: Point(ready=1), NEXT: Point(ready=1)},
        NOON + 10: {NEXT: Point(ready=1)},
    }
    told = service_history(intervals, RESOLUTIONS[0], Run(NOON, NOON + 15), ALWAYS, 0, ())
    by_revision = {each.revision: each.columns.ready for each in told.revisions}
    assert by_revision == {IRIS.revision: (1, 1, 0), NEXT.revision: (None, 1, 1)}
    assert told.service.ready == (1, 2, 1)


@pytest.mark.parametrize(
    ("last", "at", "filled"), [(None, 100, []), (95, 100, []), (85, 100, [90, 95]), (80, 100, []), (100, 90, [])]
)
def test_a_late_sample_stands_for_what_it_missed_and_a_pause_stays_a_gap(
    last: int | None, at: int, filled: list[int]
) -> None:
    assert list(missed(last, at)) == filled


def test_a_range_has_the_finest_resolution_that_covers_it() -> None:
    assert [resolution(each).step for each in (60, 900, 901, 10800, 86400)] == [5, 5, 60, 60, 300]
    assert resolution(900, 300).step == 300
    for seconds, step in ((86401, 0), (3600, 5), (900, 7)):
        with pytest.raises(UsageError, match="no range"):
            resolution(seconds, step)
