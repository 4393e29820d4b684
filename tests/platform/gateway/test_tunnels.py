"""Upgraded connections: a tunnel both ways, or an ordinary answer."""

from tests.eventually import eventually_async
from tests.platform.gateway.bed import (
    Bed,
    Clock,
    Reader,
    Seen,
    Writer,
    backend,
    looked,
    play,
    read_head,
    route,
    serving,
)


def test_an_upgraded_connection_is_a_tunnel_both_ways() -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            assert (seen.headers["connection"], seen.headers["upgrade"]) == ("Upgrade", "websocket")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi")
            while data := await reader.read(1 << 16):
                writer.write(data[::-1])
            writer.close()

        origin = await bed.origin(reply)
        bed.publish(route("iris", backend("iris-1", origin, concurrency=1), timeout_s=0.01))
        reader, writer = await bed.connect()
        writer.write(
            b"GET /iris/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: x\r\n\r\nearly"
        )
        line, headers = await read_head(reader)
        assert (line, headers["upgrade"]) == ("HTTP/1.1 101 Switching Protocols", "websocket")
        assert await reader.readexactly(7) == b"hi" + b"early"[::-1]
        for number in range(3):  # longer than the time for an answer
            writer.write(b"ab%d" % number)
            assert await reader.readexactly(3) == b"%dba" % number
            clock.now += 1
            await looked(bed)
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert report.in_flight == 1
        writer.close()
        await eventually_async(lambda: not bed.plane.clients, "the end of the tunnel")
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.in_flight, report.requests, report.errors) == (0, 1, 0)

    play(case, clock=clock)


def test_a_refused_upgrade_is_an_ordinary_answer() -> None:
    async def case(bed: Bed) -> None:
        await serving(bed)
        answered = await bed.ask("GET", "/iris/x", headers={"Connection": "upgrade", "Upgrade": "h2c"})
        assert answered.status == 200

    play(case)


def test_an_upgrade_that_nobody_asked_for_is_a_broken_answer() -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: evil\r\n\r\n")

        await serving(bed, reply)
        assert (await bed.ask("GET", "/iris/x")).status == 502

    play(case)
