"""Requests that come too slowly are answered 408 after 30 s, by the fast protocol and by aiohttp alike; and request
lines that only one of our parsers would accept are refused."""

import asyncio
import socket
from time import monotonic
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.predictor.frontends.http.test_response_budget import ASK, Bench, play, read

from pilotlight_predictor.frontends.http.aiohttp_server import Handler
from pilotlight_predictor.frontends.tasks_and_timeouts import IDLE_S, SLOW_S


def connections(bench: Bench) -> list[Any]:
    full = bench.server._aiohttp
    return [*bench.server.connections, *(full._server.connections if full is not None else ())]


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


@pytest.mark.parametrize(
    "start", [b"POST /later HTT", b"POST /later HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"]
)
def test_a_request_that_does_not_come_is_408_in_the_fast_protocol(start: bytes) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(start) as client:
            await eventually_async(lambda: any(not each.idle for each in bench.server.connections))
            (connection,) = bench.server.connections
            connection.close_if_overdue(connection.busy_since + SLOW_S - 1)
            assert connection.transport is not None
            assert not connection.transport.is_closing()
            connection.close_if_overdue(connection.busy_since + SLOW_S + 1)
            answer = await read(client, 1 << 20)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"too slowly" in answer

    play(scene, [])


@pytest.mark.parametrize("before", [b"", ASK % b"full"], ids=["its first", "its second"])
def test_a_head_has_thirty_seconds_from_its_first_byte_in_aiohttp_too(before: bytes) -> None:
    """However often a further byte comes."""

    async def scene(bench: Bench) -> None:
        with await bench.client(before) as client:
            if before:
                assert (await read(client, 1)).startswith(b"HTTP/1.1 200 ")
            await send(client, b"\r\nGET /full HTTP/1.1\r\nHost: localhost\r\nX-A: ")
            handler: list[Any] = []
            await eventually_async(
                lambda: (
                    bool(handler.extend(c for c in connections(bench) if isinstance(c, Handler) and c.head_since))
                    or bool(handler)
                )
            )
            since = handler[0].head_since
            for _ in range(3):
                seen = handler[0].last_data
                await send(client, b"a")
                await eventually_async(lambda seen=seen: handler[0].last_data > seen)
            assert handler[0].head_since == since
            handler[0].close_if_overdue(since + SLOW_S - 1)
            assert handler[0].transport is not None
            handler[0].close_if_overdue(since + SLOW_S + 1)
            assert (await read(client, 1 << 20)).startswith(b"HTTP/1.1 408 ")

    play(scene, [b"fine"])


def test_a_body_that_aiohttp_reads_too_slowly_is_408() -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(
            b"POST /later HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nx"
        ) as client:
            await eventually_async(lambda: bench.held == 1)
            full = bench.server._aiohttp
            assert full is not None
            full.close_overdue(monotonic() + SLOW_S - 1, SLOW_S)
            await asyncio.sleep(0)
            assert bench.held
            full.close_overdue(monotonic() + SLOW_S + 1, SLOW_S)
            answer = await read(client, 1)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"the body arrived too slowly; bytes received: 1" in answer
            assert not bench.held

    play(scene, [])


def test_an_idle_connection_of_aiohttp_is_kept_as_before() -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(ASK % b"full") as client:
            assert (await read(client, 1)).startswith(b"HTTP/1.1 200 ")
            (handler,) = (each for each in connections(bench) if isinstance(each, Handler))
            await eventually_async(lambda: handler._current_request is None)
            handler.close_if_overdue(handler.last_data + IDLE_S - 1)
            assert handler.transport is not None
            handler.close_if_overdue(handler.last_data + IDLE_S + 1)
            assert await read(client, 1) == b""

    play(scene, [b"fine"])


@pytest.mark.parametrize(
    "line",
    [b"GET /full", b"GET /full HTTP/0.9", b"GET /full HTTP/2.0", b"GET /full  HTTP/1.1", b"GET  /full HTTP/1.1"],
)
@pytest.mark.parametrize("before", [b"", ASK % b"full"], ids=["its first", "its second"])
def test_request_lines_that_the_gateway_refuses_are_400(line: bytes, before: bytes) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(before) as client:
            if before:
                assert (await read(client, 1)).startswith(b"HTTP/1.1 200 ")
            await send(client, line + b"\r\nHost: localhost\r\n\r\n")
            answer = await read(client, 1 << 20)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"HTTP/1.1 200" not in answer

    play(scene, [b"fine"])


def test_the_rest_of_a_body_that_was_refused_is_no_request_line() -> None:
    """It is read and dropped, so that the client sees its answer."""

    async def scene(bench: Bench) -> None:
        head = b"POST /full HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
        with await bench.client(head + b"line\r\n") as client:
            answer = await read(client, 1)
            assert answer.startswith(b"HTTP/1.1 405 ")
            await send(client, b"no request\r\n" * 100)
            await send(client, bytes(200000 - 6 - 1200) + ASK % b"full")
            assert (await read(client, 1)).startswith(b"HTTP/1.1 200 ")

    play(scene, [b"fine"])
