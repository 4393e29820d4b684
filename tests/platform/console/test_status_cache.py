"""What readers are sent: what they have not seen, and a past that holds until the next point."""

import asyncio
from collections import deque
from collections.abc import Sequence

from pilotlight.console.status_cache import (
    HISTORY_S,
    MAX_POINTS,
    MIN_INTERVAL_S,
    Point,
    StatusCache,
    append_point,
    changes,
    point,
    row,
)
from pilotlight.targets.target import RevisionStatus, ServiceStatus


def status(name: str = "iris", **revision: object) -> ServiceStatus:
    made = RevisionStatus(f"{name}-1", name, "predictor", 100, **revision)  # type: ignore[arg-type]
    return ServiceStatus("default", name, 1, "Ready", "http://127.0.0.1/", revisions=(made,))


def test_only_rows_that_differ_are_sent_and_those_gone_are_named() -> None:
    one, two, other = (row(status("one")), row(status("two")), row(status("two", ready=1)))
    assert changes({}, {"default/one": one}) == ([one], [])
    sent = {"default/one": one, "default/two": two}
    assert changes(sent, {"default/one": one, "default/two": other}) == ([other], [])
    assert changes(sent, {"default/one": one}) == ([], ["default/two"])


def test_noise_behind_the_third_decimal_is_no_change() -> None:
    assert row(status(p99_ms=1.00001)) == row(status(p99_ms=1.00002))
    assert row(status(p99_ms=1.001)) != row(status(p99_ms=1.002))


def test_a_target_that_tells_no_rate_has_the_mean_of_its_minutes() -> None:
    assert point(status(requests=600), 5.0).per_second == 2.0
    assert point(status(requests=600, per_second=0.5), 5.0).per_second == 0.5


def test_points_are_kept_where_figures_change() -> None:
    points: deque[Point] = deque(maxlen=MAX_POINTS)
    for at, ready in ((1.0, 0), (2.0, 0), (3.0, 1), (4.0, 1), (5.0, 0)):
        append_point(points, Point(at, 0.0, None, ready))
    assert [each.at for each in points] == [1.0, 3.0, 5.0]


def test_of_what_is_too_old_the_last_point_stays_since_it_still_holds() -> None:
    points = deque([Point(1.0, 0.0, None, 1), Point(2.0, 0.0, None, 2)])
    append_point(points, Point(2.0 + HISTORY_S + 1, 0.0, None, 3))
    assert [each.ready for each in points] == [2, 3]


def test_many_readers_share_one_look() -> None:
    looks: list[int] = []

    async def look() -> Sequence[ServiceStatus]:
        looks.append(1)
        return [status(ready=len(looks))]

    async def read() -> None:
        watch = StatusCache(look)
        for now in (0.0, MIN_INTERVAL_S / 2, MIN_INTERVAL_S / 2, MIN_INTERVAL_S):
            await watch.refresh(now, 100.0 + now)
        assert [each.ready for each in watch.history["default/iris"]] == [1, 2]

    asyncio.run(read())
    assert len(looks) == 2


def test_the_past_of_a_service_goes_with_it() -> None:
    found = [status()]

    async def look() -> Sequence[ServiceStatus]:
        return found

    async def read() -> None:
        watch = StatusCache(look)
        await watch.refresh(0.0, 0.0)
        found.clear()
        await watch.refresh(MIN_INTERVAL_S, 1.0)
        assert not watch.rows
        assert not watch.history

    asyncio.run(read())
