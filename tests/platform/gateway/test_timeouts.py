"""Nobody waits for ever: slow replicas, slow clients, idle connections, and the end of the process."""

import asyncio
from contextlib import suppress

from tests.eventually import eventually_async
from tests.platform.gateway.bed import (
    Bed,
    Clock,
    Reader,
    Seen,
    Writer,
    answer,
    backend,
    error_of,
    looked,
    play,
    read_answer,
    route,
)


async def never(seen: Seen, reader: Reader, writer: Writer) -> None:
    await reader.read()


def test_no_answer_in_time_is_a_gateway_timeout_and_frees_the_replica() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin(never)
        bed.publish(route("iris", backend("iris-1", origin), timeout_s=0.05))
        reader, writer = await bed.connect()
        for _ in range(2):
            writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: r1\r\n\r\n")
            late = await read_answer(reader)
            assert late.status == 504
            assert error_of(late)
        assert [message.reason for message in bed.unreachable] == ["did not respond to request r1 within 0.05 s"]
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.requests, report.errors, report.in_flight) == (2, 2, 0)
        await eventually_async(lambda: all(writer.is_closing() for writer in origin.connections), "the replica told")

    play(case)


def test_an_answer_that_began_and_does_not_end_in_time_is_broken_off() -> None:
    async def case(bed: Bed) -> None:
        async def half(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            await reader.read()

        origin = await bed.origin(half)
        bed.publish(route("iris", backend("iris-1", origin), timeout_s=0.05))
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        with suppress(ConnectionResetError):
            assert not (await reader.read()).endswith(b"0\r\n\r\n")

    play(case)


def test_the_time_for_an_answer_begins_when_a_replica_gets_the_request() -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1"), timeout_s=0.05))
        asked = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        await eventually_async(lambda: bool(bed.wakes), "the request to wait")
        clock.now += 1
        await looked(bed)
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin), timeout_s=0.05))
        assert (await asked).status == 200

    play(case, clock=clock)


def test_a_head_that_does_not_come_is_waited_for_thirty_seconds() -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\n")
        await eventually_async(lambda: any(client._head_incomplete for client in bed.plane.clients))
        clock.now += 29
        await looked(bed)
        assert not reader.at_eof()
        clock.now += 2
        assert (await read_answer(reader)).status == 408
        assert await reader.read() == b""

    play(case, clock=clock)


def test_an_idle_connection_is_closed_after_75_seconds_and_one_to_a_replica_before_that() -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        await read_answer(reader)
        clock.now += 51
        await eventually_async(lambda: origin.connections[0].is_closing(), "the kept connection closed")
        assert not reader.at_eof()
        clock.now += 25
        assert await reader.read() == b""

    play(case, clock=clock)


def test_draining_answers_what_is_here_and_closes_every_connection_behind_it() -> None:
    async def case(bed: Bed) -> None:
        go = asyncio.Event()

        async def slow(seen: Seen, reader: Reader, writer: Writer) -> None:
            await go.wait()
            await answer(writer, b"done")

        origin = await bed.origin(slow)
        bed.publish(route("iris", backend("iris-1", origin)))
        idle_reader, _ = await bed.connect()
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually_async(lambda: bool(origin.seen))
        draining = asyncio.ensure_future(bed.plane.drain(10))
        await asyncio.sleep(0)
        assert not draining.done()
        go.set()
        answered = await read_answer(reader)
        assert (answered.body, answered.headers["connection"]) == (b"done", "close")
        await draining
        assert await idle_reader.read() == b""

    play(case)


def test_draining_ends_in_time_whatever_is_still_here() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin(never)
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually_async(lambda: bool(origin.seen))
        await bed.plane.drain(0.02)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""

    play(case)


SLOW = b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx"


def test_a_body_that_does_not_come_in_time_is_408_and_no_error_of_the_replica() -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin), timeout_s=60))
        reader, writer = await bed.connect()
        writer.write(SLOW)
        await eventually_async(lambda: bool(origin.connections), "the replica to get its beginning")
        clock.now += 61
        assert (await read_answer(reader)).status == 408
        report = bed.plane.report(clock.now).backends[0]
        assert (report.requests, report.errors, report.in_flight, sum(report.latencies)) == (0, 0, 0, 0)
        assert not bed.unreachable

    play(case, clock=clock)


def test_a_request_that_the_replica_found_too_slow_is_not_counted() -> None:
    async def case(bed: Bed) -> None:
        async def too_slow(seen: Seen, reader: Reader, writer: Writer) -> None:
            await answer(writer, b"slow", "Connection: close", status="408 Request Timeout")
            writer.close()

        bed.publish(route("iris", backend("iris-1", await bed.origin(too_slow, whole=False))))
        reader, writer = await bed.connect()
        writer.write(SLOW)
        assert (await read_answer(reader)).status == 408
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.requests, report.errors, report.in_flight) == (0, 0, 0)

    play(case)


def test_a_body_that_comes_slowly_is_neither_load_nor_latency_of_the_replica() -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(SLOW)
        await eventually_async(lambda: bool(origin.connections), "the replica to get its beginning")
        clock.now += 6
        await looked(bed)
        bed.plane.report(clock.now)
        clock.now += 10
        assert not bed.plane.report(clock.now).backends
        writer.write(b"x")
        assert (await read_answer(reader)).status == 200
        clock.now += 1
        report = bed.plane.report(clock.now).backends[0]
        assert (report.requests, report.errors, report.in_flight, report.latencies[0]) == (1, 0, 0, 1)

    play(case, clock=clock)


def test_a_client_that_leaves_within_a_slow_body_is_forgotten() -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        _, writer = await bed.connect()
        writer.write(SLOW)
        await eventually_async(lambda: bool(origin.connections), "the replica to get its beginning")
        clock.now += 6
        await looked(bed)
        writer.close()
        live = bed.plane._backends[("default", "iris"), "iris-1"]
        await eventually_async(lambda: not live.replicas[0].in_flight, "the slot to be free")
        assert live.counts.load == 0

    play(case, clock=clock)
