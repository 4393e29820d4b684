"""Streamed responses of the fast protocol: chunks, further requests on the connection, failures, clients that leave."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.eventually import eventually_async

from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.server import HttpServer, bind

GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Stream:
    """Pieces until it is closed; `closed` says that it was."""

    def __init__(self, pieces: list[bytes], failure: Exception | None = None, hangs: bool = False) -> None:
        self._pieces, self._failure, self._hangs = pieces, failure, hangs
        self.sent, self.closed = 0, False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._pieces:
            self.sent += 1
            return self._pieces.pop(0)
        if self._failure is not None:
            raise self._failure
        if self._hangs:
            await asyncio.Event().wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True


def serve(streams: dict[str, Any], talk: Talk) -> None:
    """Talk to a server that answers each path with its stream."""

    def respond(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, streams[request.path], "text/event-stream")

    async def scene() -> None:
        listener, server = bind("127.0.0.1", 0), HttpServer(respond)
        await server.listen(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        await talk(reader, writer)
        writer.close()
        assert await server.drain(0, 5)

    asyncio.run(scene())


def test_pieces_are_sent_as_chunks_and_pipelined_requests_follow() -> None:
    streams = {"/a": Stream([b"one", b"", b"two" * 10]), "/b": Stream([b"three"])}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET % (b"a", b"") + GET % (b"b", b"Connection: close\r\n"))
        first = HEAD + b"\r\n3\r\none\r\n1e\r\n" + b"two" * 10 + b"\r\n0\r\n\r\n"
        second = HEAD + b"Connection: close\r\n\r\n5\r\nthree\r\n0\r\n\r\n"
        assert await reader.readexactly(len(first)) == first
        assert await reader.read() == second

    serve(streams, talk)
    assert all(stream.closed for stream in streams.values())


def test_a_stream_that_fails_ends_without_its_last_chunk() -> None:
    stream = Stream([b"one"], ValueError("broken"))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET % (b"a", b""))
        assert await reader.read() == HEAD + b"\r\n3\r\none\r\n"

    serve({"/a": stream}, talk)
    assert stream.closed


def test_a_stream_is_closed_when_its_client_leaves() -> None:
    stream = Stream([b"one"], hangs=True)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET % (b"a", b""))
        await reader.readuntil(b"one\r\n")
        writer.close()
        await eventually_async(lambda: stream.closed)

    serve({"/a": stream}, talk)
    assert stream.closed


def test_a_stream_is_held_back_while_its_client_does_not_read() -> None:
    count = 200
    stream = Stream([b"x" * (1 << 18)] * count)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET % (b"a", b"Connection: close\r\n"))
        sent = -1
        while sent != stream.sent or not sent:
            sent = stream.sent
            await asyncio.sleep(0.2)
        assert sent < count
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        body = await reader.read()
        assert body.endswith(b"0\r\n\r\n")
        assert body.count(b"40000\r\n") == count

    serve({"/a": stream}, talk)
