"""A client that stops reading is given up, and whoever makes the answer is told."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.predictor.scheduling.instances import PATIENCE_S

from pilotlight_predictor.config import Limits, Settings
from pilotlight_predictor.frontends import tasks_and_timeouts
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Access, Action
from pilotlight_predictor.frontends.http.aiohttp_server import AiohttpServer
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import Dispatcher, Route, ServingProtocol
from pilotlight_predictor.frontends.http.server import HttpServer

ASK = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
PIECE = b"x" * (1 << 16)


class Endless:
    """A body without an end, which notes that nobody wants more of it."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.pieces = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self.pieces += 1
        return PIECE

    async def aclose(self) -> None:
        self.closed.set()


class SteppedClock(asyncio.SelectorEventLoop):
    """Its clock stands still but for what the test adds to it, however long the machine takes."""

    now = 0.0

    def time(self) -> float:
        return self.now


def full_server(body: Any) -> AiohttpServer:
    def handler(_: Any, __: HttpRequest) -> HttpResponse:
        return HttpResponse(200, body, "text/event-stream")

    routes = (Route("GET", "/it", handler, Action.READ),)
    dialect = ServingProtocol("test", routes, lambda error: HttpResponse(error.status))
    admission = Admission(Access(Settings().server), Limits(1 << 20, 0.0, None, None), 1 << 30)
    return AiohttpServer(Dispatcher(None, (dialect,), admission), HttpServer(lambda _: HttpResponse(503)))  # type: ignore[arg-type]


async def stalled(full: AiohttpServer) -> socket.socket:
    """A client that has asked and reads nothing."""
    server = await asyncio.get_running_loop().create_server(full.handler, "127.0.0.1", 0)
    client = socket.socket()
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, server.sockets[0].getsockname())
    await asyncio.get_running_loop().sock_sendall(client, ASK % b"it")
    server.close()
    return client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_and_timeouts, "SLOW_S", 0.1)
    monkeypatch.setattr(tasks_and_timeouts, "LEAST_RATE", 1 << 40)


def test_a_body_in_parts_is_closed_when_its_client_stops_reading() -> None:
    async def scene() -> None:
        body = Endless()
        full = full_server(body)
        with await stalled(full):
            await asyncio.wait_for(body.closed.wait(), PATIENCE_S)
        await full.close(1)
        assert full.in_flight == 0

    asyncio.run(scene())


def test_a_long_answer_is_given_up_when_its_client_stops_reading() -> None:
    async def scene() -> None:
        full = full_server([b"x" * (64 << 20)])
        with await stalled(full):
            async with asyncio.timeout(PATIENCE_S):
                while not full.in_flight:
                    await asyncio.sleep(0.01)
                while full.in_flight:
                    await asyncio.sleep(0.01)
        await full.close(1)

    asyncio.run(scene())


def test_a_client_that_reads_gets_everything_however_long_it_takes() -> None:
    async def scene(loop: SteppedClock) -> None:
        body = Endless()
        full = full_server(body)
        with await stalled(full) as client:
            for _ in range(5):
                begun = body.pieces + 2  # then the write that waits began after the clock was put forward
                while body.pieces < begun:
                    assert await loop.sock_recv(client, 1 << 20)
                assert not body.closed.is_set()
                loop.now += tasks_and_timeouts.SLOW_S * 0.9
        await body.closed.wait()
        await full.close(1)

    with asyncio.Runner(loop_factory=SteppedClock) as runner:
        runner.run(scene(cast(SteppedClock, runner.get_loop())))
