"""Bytes in flight: a response counts until its client has read it, and a request until its handler is done with it."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from tests.conftest import Serve
from tests.eventually import eventually_async
from tests.onnx_models import write_python
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import RunningServer, json_tensor

from pilotlight.wire.protobuf import delimited, tag, varint
from pilotlight_predictor.config import Limits, Settings
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Access, Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Dispatcher, Route, ServingProtocol
from pilotlight_predictor.frontends.http.server import HttpServer

MIB = 1 << 20
BUDGET = 20 * MIB
LARGE = 16 * MIB  # more than the socket buffers of both sides take
ASK = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Pieces:
    """A body of pieces without an end."""

    def __init__(self, size: int) -> None:
        self.size, self.closed = size, False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return bytes(self.size)

    async def aclose(self) -> None:
        self.closed = True


class Bench:
    """An HTTP server of three routes: `fast` by the fast protocol, `full` by aiohttp, `later` when the test says so."""

    def __init__(self, body: Any) -> None:
        self.waiting: list[HttpRequest] = []

        def respond(_: Any, __: HttpRequest) -> HttpResponse:
            return HttpResponse(200, body)

        def later(_: Any, request: HttpRequest) -> None:
            self.waiting.append(request)

        routes = (
            Route("GET", "/fast", respond, Action.READ, hot=True),
            Route("GET", "/full", respond, Action.READ),
            Route("POST", "/later", later, Action.READ, hot=True),
        )

        def error_body(error: PredictorError) -> HttpResponse:
            return json_response({"error": str(error)}, error.status)

        self.admission = Admission(Access(Settings().server), Limits(64 * MIB, 0.0, None, None), BUDGET)
        protocol = ServingProtocol("test", routes, error_body)
        self.server = HttpServer(lambda _: HttpResponse(503))
        self.server.open(Dispatcher(None, (protocol,), self.admission))  # type: ignore[arg-type]
        self.listener = socket.create_server(("127.0.0.1", 0))

    @property
    def held(self) -> int:
        return self.admission.bytes_in_flight

    async def client(self, request: bytes) -> socket.socket:
        await self.server.listen(self.listener)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, self.listener.getsockname())
        await loop.sock_sendall(client, request)
        return client


async def read(client: socket.socket, size: int) -> bytes:
    text = bytearray()
    while len(text) < size and (data := await asyncio.get_running_loop().sock_recv(client, MIB)):
        text += data
    return bytes(text)


def play(scene: Callable[[Bench], Any], body: Any) -> None:
    async def main() -> None:
        bench = Bench(body)
        await scene(bench)
        await bench.server.drain(0, 0)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("path", [b"fast", b"full"])
def test_a_response_counts_until_its_client_has_read_it(path: bytes) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(ASK % path) as client:
            await eventually_async(lambda: bench.held > LARGE // 2)
            await read(client, LARGE)
            await eventually_async(lambda: not bench.held)

    play(scene, [bytes(LARGE)])


@pytest.mark.parametrize("path", [b"fast", b"full"])
def test_a_response_for_which_the_budget_does_not_suffice_is_503_and_the_next_one_comes(path: bytes) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(ASK % path) as client, await bench.client(b"") as other:
            await eventually_async(lambda: bench.held > LARGE // 2)
            await asyncio.get_running_loop().sock_sendall(other, ASK % path)
            refusal = await read(other, 1)
            assert refusal.startswith(b"HTTP/1.1 503 ")
            assert b"requests and unread responses hold" in refusal
            assert b"(--max-bytes-in-flight), 16777216 more do not fit" in refusal
            client.close()
            await eventually_async(lambda: not bench.held)
            await asyncio.get_running_loop().sock_sendall(other, ASK % path)
            assert (await read(other, 1)).startswith(b"HTTP/1.1 200 ")
        await eventually_async(lambda: not bench.held)

    play(scene, [bytes(LARGE)])


def test_the_buffered_part_of_a_streamed_response_counts_while_nobody_reads_it() -> None:
    body = Pieces(MIB)

    async def scene(bench: Bench) -> None:
        with await bench.client(ASK % b"fast") as client:
            await eventually_async(lambda: bench.held > 0)
            assert await read(client, 8 * MIB)
        await eventually_async(lambda: body.closed and not bench.held)

    play(scene, body)


@pytest.mark.parametrize("path", [b"fast", b"full"])
def test_a_streamed_response_beyond_the_budget_is_cut_off(path: bytes) -> None:
    body = Pieces(2 * BUDGET)

    async def scene(bench: Bench) -> None:
        with await bench.client(ASK % path) as client:
            await eventually_async(lambda: body.closed)
            with suppress(ConnectionResetError):
                assert len(await read(client, BUDGET)) < BUDGET
        assert not bench.held

    play(scene, body)


def test_a_request_counts_until_its_handler_is_done_though_its_client_has_gone() -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(
            b"POST /later HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n" + bytes(9000)
        ):
            await eventually_async(lambda: bool(bench.waiting))
        await eventually_async(lambda: bench.waiting[0].abandoned)
        assert bench.held == 9000
        bench.waiting[0].finish(HttpResponse(200, [b"late"]))
        assert bench.held == 0

    play(scene, [])


def test_a_client_that_leaves_before_the_head_of_its_response_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, left = web.StreamResponse.prepare, []

    async def gone_at_first(self: web.StreamResponse, request: Any) -> Any:
        if not left:
            left.append(request)
            raise ConnectionResetError("Cannot write to closing transport")
        return await prepare(self, request)

    monkeypatch.setattr(web.StreamResponse, "prepare", gone_at_first)

    async def scene(bench: Bench) -> None:
        with await bench.client(ASK % b"full") as client:
            assert (await read(client, 1)).startswith(b"HTTP/1.1 499 ")

    play(scene, [bytes(LARGE)])


WIDE = """
import numpy as np

INPUTS = {"x": ("UINT8", [1])}
OUTPUTS = {"y": ("UINT8", [-1])}


def predict(x):
    return {"y": np.ones(4 << 20, np.uint8)}
"""
REQUESTS = re.compile(r'pilotlight_request_duration_seconds_count{.*code="(\d+)"} (\d+)')


def ask_by_http(server: RunningServer, *, full: bool) -> bool:
    document = {"inputs": [json_tensor("x", "UINT8", [1], [1])], "parameters": {"binary_data_output": True}}
    return server.infer("wide", document, full=full).status == 503


def ask_by_grpc(server: RunningServer) -> bool:
    tensor = delimited(1, b"x") + delimited(2, b"UINT8") + tag(3, 0) + varint(1)
    message = delimited(1, b"wide") + delimited(5, tensor) + delimited(7, b"\1")
    with grpc.insecure_channel(grpc_address(server)) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(message, timeout=60)
        return call.code() is grpc.StatusCode.UNAVAILABLE


def test_a_request_whose_response_is_refused_counts_once(serve: Serve, tmp_path: Path) -> None:
    write_python(tmp_path, "wide", WIDE)
    server = serve(tmp_path, "--grpc-port", "0", "--max-bytes-in-flight", "2MiB")
    assert ask_by_http(server, full=False)
    assert ask_by_http(server, full=True)
    assert ask_by_grpc(server)
    metrics = server.get("/metrics").body.decode()
    assert sorted(REQUESTS.findall(metrics)) == [("200", "1"), ("200", "2")]  # of gRPC and HTTP
    assert "pilotlight_responses_refused_total 3" in metrics
