"""Places on replicas for calls that the data plane does not carry itself: same line, same limits."""

import asyncio

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.bed import Bed, Clock, backend, play, route

from pilotlight.gateway.proxy.data_plane import Lease
from pilotlight.gateway.proxy.responses import RequestRejected
from pilotlight.gateway.routing_table import Route


async def take(bed: Bed, service: Route, revision: str | None = None, seconds: float = 10.0) -> Lease:
    return await bed.plane.acquire(service, revision, {}, bed.plane.clock() + seconds)


def test_a_lease_names_a_replica_and_counts_until_it_is_given_back() -> None:
    async def case(bed: Bed) -> None:
        service = route("iris", backend("iris-1", 1001), backend("iris-2", 1002, weight=0, tags=("next",)))
        bed.publish(service)
        lease = await take(bed, service)
        assert (lease.replica.port, lease.cold_ms) == (1001, None)
        assert bed.plane.report(bed.plane.clock()).backends[0].in_flight == 1
        lease.release(500)
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.requests, report.errors, report.in_flight) == (1, 1, 0)
        assert (await take(bed, service, "next")).replica.port == 1002
        tagged = await bed.plane.acquire(service, None, {"x-pilotlight-tag": "next"}, bed.plane.clock() + 1)
        assert tagged.replica.port == 1002

    play(case)


def test_a_lease_waits_for_a_replica_and_says_how_long() -> None:
    async def case(bed: Bed) -> None:
        service = route("iris", backend("iris-1"))
        bed.publish(service)
        asked = asyncio.ensure_future(take(bed, service))
        await eventually_async(lambda: bool(bed.wakes))
        bed.publish(route("iris", backend("iris-1", 1001)))
        lease = await asked
        assert lease.cold_ms is not None
        assert lease.replica.port == 1001

    play(case)


def test_leases_and_requests_share_one_limit() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        service = route("iris", backend("iris-1", origin, concurrency=1))
        bed.publish(service)
        lease = await take(bed, service)
        asked = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        second = asyncio.ensure_future(take(bed, service))
        (live,) = bed.plane._backends.values()
        await eventually_async(lambda: len(live.waiting) == 2)
        assert not origin.seen
        lease.release(200)
        (await second).release(200)
        assert (await asked).status == 200

    play(case)


def test_a_lease_is_refused_as_a_request_would_be() -> None:
    async def case(bed: Bed) -> None:
        service = route("iris", backend("iris-1", hold_s=0.02))
        bed.publish(service)
        for refused, status in (
            (take(bed, service), 503),
            (take(bed, service, "nobody"), 404),
            (take(bed, route("other")), 404),
        ):
            with pytest.raises(RequestRejected) as caught:
                await refused
            assert caught.value.response.status == status

    play(case)


def test_whoever_waits_no_longer_gives_its_place_back() -> None:
    async def case(bed: Bed) -> None:
        service = route("iris", backend("iris-1", hold_limit=1))
        bed.publish(service)
        (live,) = bed.plane._backends.values()
        with pytest.raises(RequestRejected) as caught:
            await take(bed, service, seconds=0.02)
        assert caught.value.response.status == 504
        assert not live.waiting
        asked = asyncio.ensure_future(take(bed, service))
        await eventually_async(lambda: len(live.waiting) == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert not live.waiting
        assert live.counts.load == 0

    play(case)


def test_a_replica_that_a_lease_could_not_reach_is_left_alone_for_a_while() -> None:
    async def case(bed: Bed) -> None:
        service = route("iris", backend("iris-1", 1001, 1002))
        bed.publish(service)
        lease = await take(bed, service)
        lease.fail_unreachable()
        others = [await take(bed, service) for _ in range(4)]
        assert {other.replica.port for other in others} == {1001, 1002} - {lease.replica.port}

    play(case, clock=Clock())


def test_that_a_replica_cannot_be_reached_is_news_once() -> None:
    async def case(bed: Bed) -> None:
        service = route("iris", backend("iris-1", 1001))
        bed.publish(service)
        leases = [await take(bed, service) for _ in range(3)]
        assert [lease.fail_unreachable() for lease in leases] == [True, False, False]

    play(case, clock=Clock())
