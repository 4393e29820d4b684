"""Requests that wait for a replica: who is told, how long, how many, and what becomes of them."""

import asyncio

import pytest
from msgspec import structs
from tests.eventually import eventually_async
from tests.platform.gateway.bed import Bed, Reader, Seen, Writer, backend, error_of, play, read_answer, route
from tests.serving import Answer

from pilotlight.gateway.control_link import Wake
from pilotlight.gateway.proxy import backend as proxy_backend


async def held(bed: Bed, count: int) -> None:
    def waiting() -> int:
        return sum(len(live.waiting) for live in bed.plane._backends.values())

    await eventually_async(lambda: waiting() == count, f"{count} requests waiting")


def wakes(bed: Bed) -> list[Wake]:
    return [structs.replace(wake, active=()) for wake in bed.wakes]


def test_a_wake_says_which_others_have_requests_and_is_soon_repeated() -> None:
    """One of the others may have to leave a GPU for it, and need not be busy a moment later."""

    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(
            route("iris", backend("iris-1")),
            route("used", backend("used-1", origin)),
            route("unused", backend("unused-1", origin)),
        )
        assert (await bed.ask("GET", "/used/x")).status == 200
        asked = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        await eventually_async(lambda: len(bed.wakes) == 3, "two more wakes")
        first, _, third = ({each.revision: each for each in wake.active} for wake in bed.wakes)
        assert set(first) == {"used-1", "iris-1"}
        assert (first["used-1"].waiting, first["used-1"].in_flight) == (0, 0)
        assert 0 < first["used-1"].idle_s <= third["used-1"].idle_s - 0.2
        assert (first["iris-1"].waiting, first["iris-1"].idle_s) == (1, 0.0)
        bed.publish(route("iris", backend("iris-1", origin)))
        assert (await asked).status == 200

    play(case)


def test_a_request_wakes_its_revision_waits_and_says_how_long_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_backend, "WAKE_AGAIN_S", 600.0)

    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        asked = [asyncio.ensure_future(bed.ask("POST", "/iris/x", b"body")) for _ in range(3)]
        await held(bed, 3)
        assert wakes(bed) == [Wake("default", "iris", "iris-1", 1)]  # once, at the first
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        answers = await asyncio.gather(*asked)
        assert {answered.status for answered in answers} == {200}
        assert all(int(answered.headers["x-pilotlight-cold-start"]) < 60_000 for answered in answers)
        assert [seen.body for seen in origin.seen] == [b"body"] * 3
        assert "x-pilotlight-cold-start" not in (await bed.ask("GET", "/iris/x")).headers
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.cold_starts, report.held, report.requests) == (1, 3, 4)
        assert report.held_s > 0

    play(case)


def test_a_streamed_answer_says_it_too() -> None:
    async def stream(seen: Seen, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")

    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        asked = asyncio.ensure_future(bed.ask("GET", "/iris/x", headers={"Connection": "close"}))
        await held(bed, 1)
        bed.publish(route("iris", backend("iris-1", await bed.origin(stream))))
        answered = await asked
        assert (answered.body, answered.headers["connection"]) == (b"a", "close")
        assert int(answered.headers["x-pilotlight-cold-start"]) >= 0

    play(case)


def test_waking_is_repeated_every_second_until_a_replica_comes() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        asked = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        await eventually_async(lambda: len(bed.wakes) >= 2, "a second wake")
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        await asked
        woken = len(bed.wakes)
        bed.publish(route("iris", backend("iris-1")))
        again = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        await eventually_async(lambda: len(bed.wakes) > woken, "a wake at once for the next fall to zero")
        bed.publish()
        assert (await again).status == 404

    play(case)


def test_whoever_waits_too_long_is_told_when_to_come_back() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", hold_s=0.05, pending="GPU memory")))
        late = await bed.ask("GET", "/iris/x")
        assert late.status == 503
        assert int(late.headers["retry-after"]) > 0
        assert "within 0.05 s, it waits for GPU memory; retry later" in error_of(late)
        await held(bed, 0)
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.requests, report.errors, report.rejected, report.waiting) == (1, 1, 1, 0)

    play(case)


def test_a_client_says_how_long_it_may_wait() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", hold_s=60)))
        late = await bed.ask("GET", "/iris/x", headers={"X-Pilotlight-Hold-Timeout": "0.05"})
        assert (late.status, int(late.headers["x-pilotlight-cold-start"]) > 0) == (503, True)
        assert "0.05 s" in error_of(late)
        asked = [
            asyncio.ensure_future(bed.ask("GET", "/iris/x", headers={"X-Pilotlight-Hold-Timeout": value}))
            for value in ("600", "soon", "nan")
        ]
        await held(bed, 3)
        bed.publish(route("iris", backend("iris-1", await bed.origin())))
        assert {answered.status for answered in await asyncio.gather(*asked)} == {200}

    play(case)


def test_more_than_the_limit_are_refused_at_once() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", hold_limit=2)))
        asked = [asyncio.ensure_future(bed.ask("GET", "/iris/x")) for _ in range(2)]
        await held(bed, 2)
        full = await bed.ask("GET", "/iris/x")
        assert (full.status, "retry-after" in full.headers) == (503, True)
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin, hold_limit=2)))
        assert {answered.status for answered in await asyncio.gather(*asked)} == {200}

    play(case)


def test_a_revision_that_cannot_start_is_not_waited_for() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        early = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        await held(bed, 1)
        bed.publish(route("iris", backend("iris-1", unavailable="the model iris cannot be loaded")))
        for answered in (await early, await bed.ask("GET", "/iris/x")):
            assert answered.status == 503
            assert error_of(answered) == "the model iris cannot be loaded"
            assert "retry-after" in answered.headers

    play(case)


def test_a_rejected_request_still_wakes_its_revision() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", unavailable="the model iris cannot be loaded")))
        assert (await bed.ask("GET", "/iris/x")).status == 503
        assert wakes(bed) == [Wake("default", "iris", "iris-1", 1)]

    play(case)


def test_a_request_waits_for_the_end_of_a_crash_backoff_that_its_deadline_allows() -> None:
    async def case(bed: Bed) -> None:
        now = bed.plane.clock()
        bed.publish(route("iris", backend("iris-1", hold_s=60.0, starts_at=now + 30.0)))
        early = asyncio.ensure_future(bed.ask("GET", "/iris/early"))
        await held(bed, 1)
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin, hold_s=60.0)))
        assert (await early).status == 200

    play(case)


def test_a_request_is_refused_at_once_when_the_next_start_is_after_its_deadline() -> None:
    async def case(bed: Bed) -> None:
        now = bed.plane.clock()
        bed.publish(route("iris", backend("iris-1", hold_s=5.0)))
        before = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        await held(bed, 1)
        bed.publish(route("iris", backend("iris-1", hold_s=5.0, starts_at=now + 30.0)))
        for answered in (await before, await bed.ask("GET", "/iris/x")):
            assert answered.status == 503
            assert "iris-1 crashed and restarts in" in error_of(answered)
            assert 28 <= int(answered.headers["retry-after"]) <= 30

    play(case)


def test_a_client_that_leaves_frees_its_place() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", hold_limit=1)))
        _, writer = await bed.connect()
        writer.write(b"GET /iris/gone HTTP/1.1\r\nHost: a\r\n\r\n")
        await held(bed, 1)
        writer.close()
        await held(bed, 0)
        stays = asyncio.ensure_future(bed.ask("GET", "/iris/stays"))
        await held(bed, 1)
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        assert (await stays).status == 200
        assert [seen.path for seen in origin.seen] == ["/stays"]

    play(case)


@pytest.mark.parametrize(("path", "status"), [("/iris/", 200), ("/iris@iris-1/", 404)])
def test_whoever_waits_for_a_revision_that_is_taken_away_gets_another_unless_it_asked_for_that_one(
    path: str, status: int
) -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        asked = asyncio.ensure_future(bed.ask("GET", path))
        await held(bed, 1)
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-2", origin)))
        assert (await asked).status == status

    play(case)


def test_a_long_body_stays_with_its_client_until_somebody_takes_it() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        body = bytes(range(256)) * (16 << 12)  # 16 MiB
        reader, writer = await bed.connect()
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await held(bed, 1)
        exchange = next(client.request for client in bed.plane.clients)
        assert exchange is not None
        await eventually_async(lambda: exchange.client._paused, "nothing more read")
        assert (1 << 20) < exchange.buffered < (1 << 21)
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        answered: Answer = await read_answer(reader)
        assert answered.status == 200
        assert origin.seen[0].body == body

    play(case)


def test_all_bodies_together_have_one_bound_beyond_which_only_short_requests_wait() -> None:
    """Each line has room for a thousand, and a process serves many: it must not end by what they hold."""

    async def case(bed: Bed) -> None:
        bed.plane.buffer_budget.limit = 100_000
        names = ("iris", "rose", "lily")
        bed.publish(*(route(name, backend(f"{name}-1")) for name in names))
        asked = [asyncio.ensure_future(bed.ask("POST", f"/{name}/x", bytes(40_000))) for name in ("iris", "rose")]
        await held(bed, 2)
        refused = await bed.ask("POST", "/lily/x", bytes(40_000))
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert "MiB; retry later" in error_of(refused)
        asked += [asyncio.ensure_future(bed.ask("POST", "/lily/x", bytes(40)))]
        await held(bed, 3)
        origin = await bed.origin()
        bed.publish(*(route(name, backend(f"{name}-1", origin)) for name in names))
        assert [answered.status for answered in await asyncio.gather(*asked)] == [200, 200, 200]
        assert (await bed.ask("POST", "/lily/x", bytes(200_000))).status == 200  # it need not wait
        assert bed.plane.buffer_budget.used == 0

    play(case)


def test_a_request_that_outgrows_the_room_while_it_waits_is_refused_and_leaves_the_line() -> None:
    async def case(bed: Bed) -> None:
        bed.plane.buffer_budget.limit = 100_000
        bed.publish(route("iris", backend("iris-1")))
        reader, writer = await bed.connect()
        writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n")
        await held(bed, 1)
        writer.write(bytes(150_000))
        assert (await read_answer(reader)).status == 503
        await held(bed, 0)
        assert bed.plane.buffer_budget.used == 0
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert bed.plane.loads() == {}
        assert report.requests == 1

    play(case)


def test_a_client_that_disconnects_frees_its_buffer() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        _, writer = await bed.connect()
        writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n" + bytes(40_000))
        await eventually_async(lambda: bed.plane.buffer_budget.used == 40_000, "kept")
        writer.transport.abort()
        await eventually_async(lambda: bed.plane.buffer_budget.used == 0, "given back")

    play(case)


def test_requests_that_came_while_one_was_held_are_answered_in_their_order() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        reader, writer = await bed.connect()
        writer.write(b"".join(b"GET /iris/%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(3)))
        await held(bed, 1)
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        assert [(await read_answer(reader)).json()["path"] for _ in range(3)] == ["/0", "/1", "/2"]

    play(case)
