"""Bodies and connections of every kind, both ways, at the pace of the slower side."""

import asyncio

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.bed import (
    Bed,
    Reader,
    Seen,
    Writer,
    answer,
    fine,
    play,
    read_answer,
    read_head,
    serving,
)

from pilotlight.gateway.proxy import data_plane

CHUNKED = "Transfer-Encoding: chunked"


def test_a_chunked_request_passes_with_its_trailers_as_it_is() -> None:
    async def case(bed: Bed) -> None:
        raw = b"5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 11\r\n\r\n"
        got = b""

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            nonlocal got
            got = await reader.readexactly(len(raw))
            await answer(writer, b"ok")

        origin = await serving(bed, reply, whole=False)
        reader, writer = await bed.connect()
        head = b"POST /iris/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        for byte in head + raw:  # as slowly as it gets
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await read_answer(reader)).body == b"ok"
        assert got == raw
        assert origin.seen[0].headers["trailer"] == "X-Sum"
        writer.write(head + raw)
        assert (await read_answer(reader)).body == b"ok"  # the connection goes on behind the trailers

    play(case)


def test_a_request_meets_no_connection_that_its_replica_closes_after_a_stream() -> None:
    """As llama.cpp's server does, a moment after the last chunk and without `Connection: close`."""

    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{CHUNKED}\r\n\r\n".encode())
            writer.write(b"8\r\ndata: 1\n\r\n0\r\n\r\n")
            await asyncio.sleep(0.005)
            writer.close()

        await serving(bed, reply)
        reader, writer = await bed.connect()
        for _ in range(3):
            writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            assert (await read_answer(reader)).status == 200

    play(case)


def test_every_piece_of_a_stream_reaches_the_client_at_once() -> None:
    async def case(bed: Bed) -> None:
        seen_by_client = asyncio.Event()

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{CHUNKED}\r\n\r\n".encode())
            for number in range(3):
                writer.write(b"9\r\ndata: %d\n\n\r\n" % number)
                await seen_by_client.wait()  # the next one leaves only after this one has arrived
                seen_by_client.clear()
            writer.write(b"0\r\nX-End: yes\r\n\r\n")

        await serving(bed, reply)
        reader, writer = await bed.connect()
        for _ in range(2):
            writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
            _, headers = await read_head(reader)
            assert headers["transfer-encoding"] == "chunked"
            assert headers["x-request-id"]
            for number in range(3):
                assert await reader.readuntil(b"\n\n\r\n") == b"9\r\ndata: %d\n\n\r\n" % number
                seen_by_client.set()
            assert await reader.readuntil(b"\r\n\r\n") == b"0\r\nX-End: yes\r\n\r\n"

    play(case)


def test_a_client_that_reads_slowly_stops_the_replica() -> None:
    async def case(bed: Bed) -> None:
        written = 0
        total = 256

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            nonlocal written
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (total << 18))
            for _ in range(total):
                writer.write(b"x" * (1 << 18))
                await writer.drain()
                written += 1

        origin = await serving(bed, reply)
        reader, writer = await bed.connect(limit=1 << 16)
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        await read_head(reader)
        (client,) = bed.plane.clients
        await eventually_async(lambda: client._write_blocked, "the client's connection full")
        assert client.request is not None
        assert client.request.upstream is not None
        assert client.request.upstream._paused
        await eventually_async(
            lambda: origin.connections[0].transport.get_write_buffer_size() > 0, "the replica stopped"
        )
        assert written < total / 2  # of 64 MiB most are still unwritten
        assert len(await reader.readexactly(total << 18)) == total << 18
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        await read_head(reader)  # both connections go on

    play(case)


def test_a_replica_that_reads_slowly_stops_the_client() -> None:
    async def case(bed: Bed) -> None:
        go = asyncio.Event()
        length = 64 << 20

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            await go.wait()
            await reader.readexactly(length)
            await answer(writer, b"all")

        await serving(bed, reply, whole=False)
        reader, writer = await bed.connect()
        writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length)
        writer.write(b"y" * length)
        await eventually_async(lambda: any(client._paused for client in bed.plane.clients), "the client stopped")
        assert writer.transport.get_write_buffer_size() > length / 2
        go.set()
        assert (await read_answer(reader)).body == b"all"

    play(case)


def test_a_client_may_wait_for_leave_to_send_its_body() -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            assert seen.headers["expect"] == "100-continue"
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await answer(writer, await reader.readexactly(4))

        await serving(bed, reply, whole=False)
        reader, writer = await bed.connect()
        for _ in range(2):
            writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
            assert (await read_answer(reader)).status == 100
            writer.write(b"body")
            assert (await read_answer(reader)).body == b"body"

    play(case)


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_a_body_end_with_their_head(method: str, raw: bytes) -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(raw)

        origin = await serving(bed, reply)
        reader, writer = await bed.connect()
        for _ in range(3):
            writer.write(f"{method} /iris/x HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            line, headers = await read_head(reader)
            assert line == raw.partition(b"\r\n")[0].decode()
            assert headers.get("content-length", "").encode() in raw
        assert len(origin.connections) == 1  # and the connection to the replica was kept

    play(case)


def test_a_client_that_wants_its_connection_closed_gets_that_and_the_replicas_is_kept() -> None:
    async def case(bed: Bed) -> None:
        origin = await serving(bed)
        for _ in range(2):
            reader, writer = await bed.connect()
            writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answered = await read_answer(reader)
            assert answered.headers["connection"] == "close"
            assert await reader.read() == b""
        assert len(origin.connections) == 1
        assert "connection" not in origin.seen[0].headers

    play(case)


def test_a_replica_that_closes_its_connection_does_not_close_the_clients() -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            await answer(writer, b"ok", "Connection: close, X-Inner", "X-Inner: 1", "Keep-Alive: 5", "X-Outer: 2")
            writer.close()

        origin = await serving(bed, reply)
        reader, writer = await bed.connect()
        for _ in range(3):
            writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
            answered = await read_answer(reader)
            assert answered.body == b"ok"
            assert not answered.headers.keys() & {"connection", "x-inner", "keep-alive"}
            assert answered.headers["x-outer"] == "2"
        assert len(origin.connections) == 3

    play(case)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_that_ends_with_its_connection_reaches_the_client_whole(version: bytes) -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(b"HTTP/%b 200 OK\r\nX-A: 1\r\n\r\n" % version + b"z" * 100_000)
            writer.close()

        await serving(bed, reply)
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        answered = await read_answer(reader)
        assert (answered.body, answered.headers["connection"]) == (b"z" * 100_000, "close")

    play(case)


def test_a_client_of_http_1_0_gets_what_it_understands() -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(f"HTTP/1.1 200 OK\r\n{CHUNKED}\r\n\r\n5\r\nhel".encode())
            await asyncio.sleep(0)
            writer.write(b"lo\r\n1\r\n!\r\n0\r\n\r\n")

        origin = await serving(bed, reply)
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.0\r\n\r\n")
        answered = await read_answer(reader)
        assert (answered.body, answered.headers["connection"]) == (b"hello!", "close")
        assert "transfer-encoding" not in answered.headers
        assert origin.seen[0].line == "GET /x HTTP/1.1"
        assert origin.seen[0].headers["host"] == "iris.default"

    play(case)


def test_a_replica_learns_who_asked_and_nothing_of_the_connection() -> None:
    async def case(bed: Bed) -> None:
        origin = await serving(bed)
        first = await bed.ask("GET", "/iris/x", headers={"traceparent": "00-a-b-01", "TE": "trailers"})
        got = origin.seen[0].headers
        assert got["x-forwarded-for"] == "127.0.0.1"
        assert (got["x-forwarded-proto"], got["x-forwarded-host"]) == ("http", "localhost")
        assert got["x-forwarded-prefix"] == "/iris"
        assert got["traceparent"] == "00-a-b-01"
        assert "te" not in got
        assert first.headers["x-request-id"] == got["x-request-id"]
        sent = {
            "X-Forwarded-For": "10.1.2.3", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "shop.example",
            "X-Forwarded-Prefix": "/outer", "X-Request-Id": "mine",
            "Connection": "keep-alive, X-Inner, Content-Length, Authorization",
            "X-Inner": "1", "Authorization": "Bearer x",
        }  # fmt: skip
        second = await bed.ask("POST", "/iris/x", b"abc", sent)
        got = origin.seen[1].headers
        assert got["x-forwarded-for"] == "10.1.2.3, 127.0.0.1"
        assert (got["x-forwarded-proto"], got["x-forwarded-host"]) == ("https", "shop.example")
        assert got["x-forwarded-prefix"] == "/outer/iris"
        assert second.headers["x-request-id"] == got["x-request-id"] == "mine"
        assert "x-inner" not in got
        assert (got["authorization"], origin.seen[1].body) == ("Bearer x", b"abc")
        third = await bed.ask("GET", "/iris/x")
        assert third.headers["x-request-id"] != first.headers["x-request-id"]

    play(case)


def test_an_answer_before_the_whole_request_reaches_the_client_and_ends_the_connection() -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            await answer(writer, b"too large", status="413 Content Too Large")
            await asyncio.sleep(1e-3)

        origin = await serving(bed, reply, whole=False)
        reader, writer = await bed.connect()
        writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n" + b"x" * 1000)
        answered = await read_answer(reader)
        assert (answered.status, answered.headers["connection"]) == (413, "close")
        assert await reader.read() == b""
        assert (await bed.ask("GET", "/iris/x")).status == 413
        assert len(origin.connections) == 2  # the first one is no place for another request

    play(case)


def test_a_client_that_leaves_takes_its_request_from_the_replica() -> None:
    async def case(bed: Bed) -> None:
        gone = asyncio.Event()

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            assert await reader.read() == b""
            gone.set()

        origin = await serving(bed, reply)
        _, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually_async(lambda: bool(origin.seen))
        writer.close()
        await gone.wait()
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.in_flight, report.errors) == (0, 0)

    play(case)


def test_a_client_that_has_ended_its_own_side_gets_all_it_asked_for() -> None:
    async def case(bed: Bed) -> None:
        go = asyncio.Event()

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            await go.wait()
            await fine(seen, reader, writer)

        await serving(bed, reply)
        reader, writer = await bed.connect()
        for number in range(3):
            writer.write(b"POST /iris/%d HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx" % number)
        writer.write_eof()
        await eventually_async(lambda: any(client._probed for client in bed.plane.clients), "asked whether it reads")
        go.set()
        answers = [each for each in [await read_answer(reader) for _ in range(4)] if each.status != 100]
        assert [each.json()["path"] for each in answers] == ["/0", "/1", "/2"]
        assert await reader.read() == b""
        await eventually_async(lambda: not bed.plane.clients, "its connection closed")

    play(case)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_has_ended_its_own_side_gets_a_quick_answer_and_nothing_ahead_of_it(
    version: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plane, "SWEEP_S", 60.0)  # quick is what comes before the next look

    async def case(bed: Bed) -> None:
        await serving(bed)
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/%s\r\nHost: a\r\n\r\n" % version)
        writer.write_eof()
        assert (await read_answer(reader)).status == 200
        assert await reader.read() == b""

    play(case)


def test_half_a_request_and_then_the_end_are_no_request() -> None:
    async def case(bed: Bed) -> None:
        origin = await serving(bed)
        for half in (b"GET /iris/x HT", b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx"):
            reader, writer = await bed.connect()
            writer.write(half)
            writer.write_eof()
            assert await reader.read() == b""
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/whole HTTP/1.1\r\nHost: a\r\n\r\nGET /iris/x HT")
        writer.write_eof()
        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 1
        assert [seen.path for seen in origin.seen] == ["/whole"]

    play(case)
