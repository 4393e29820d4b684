"""What readers are sent: what they have not seen."""

import asyncio
from collections.abc import Sequence

from pilotlight.console.status_cache import MIN_INTERVAL_S, StatusCache, changes, row
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
    assert row(status(requests=600))["revisions"][0]["per_second"] == 2.0
    assert row(status(requests=600, per_second=0.5))["revisions"][0]["per_second"] == 0.5


def test_many_readers_share_one_look() -> None:
    looks: list[int] = []

    async def look() -> Sequence[ServiceStatus]:
        looks.append(1)
        return [status(ready=len(looks))]

    async def read() -> None:
        watch = StatusCache(look)
        for now in (0.0, MIN_INTERVAL_S / 2, MIN_INTERVAL_S / 2, MIN_INTERVAL_S):
            await watch.refresh(now)
        assert watch.rows["default/iris"]["revisions"][0]["ready"] == 2

    asyncio.run(read())
    assert len(looks) == 2
