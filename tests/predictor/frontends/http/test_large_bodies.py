"""Large bodies are read from the socket to where they stay, and large answers are written from where they lie."""

import asyncio
import gc
import json
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from tests.eventually import eventually_async
from tests.onnx_models import write_python
from tests.predictor.in_process_server import House, play
from tests.predictor.scheduling.instances import Echo

from pilotlight.wire.http1 import PlainRequestHead
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Access
from pilotlight_predictor.frontends.http.fast_protocol import FastHttpProtocol
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import Dispatcher
from pilotlight_predictor.frontends.http.server import HttpServer
from pilotlight_predictor.frontends.tasks_and_timeouts import SCARCE_S, SLOW_S
from pilotlight_predictor.protocols import serving_protocols

SAME = """
INPUTS = {"x": ("FP32", [-1, -1])}
OUTPUTS = {"y": ("FP32", [-1, -1])}


def predict(x):
    return {"y": x}
"""
MB = 1_000_000
READ_AT_ONCE = 1 << 18  # the most that either loop reads for a protocol that takes bytes


class NotedLane(FastHttpProtocol):
    """Counts the bytes that were copied on their way here."""

    copied = 0

    def data_received(self, data: bytes) -> None:
        NotedLane.copied += len(data)
        super().data_received(data)


class Bodies:
    """A connection owner that keeps the body of every request, and answers it with the given pieces."""

    def __init__(self, pieces: list[Any]) -> None:
        self.connections: set[FastHttpProtocol] = set()
        self.last_active: FastHttpProtocol | None = None
        self.closing = False
        self.bodies: list[Any] = []
        self._pieces = pieces

    def match(self, method: str, path: str) -> Any:
        return "a route"

    def admits(self, head: PlainRequestHead, peer: str, match: Any) -> bool:
        return True

    def recheck(self, match: Any) -> bool:
        return False

    def reserve(self, length: int) -> int:
        return length

    def release(self, length: int) -> None: ...

    def switch_to_aiohttp(self, lane: FastHttpProtocol) -> None:
        raise AssertionError("every request here is plain")

    def serve(self, call: HttpRequest, match: Any) -> None:
        self.bodies.append(call.body)
        call.finish(HttpResponse(200, self._pieces))


class Booting(Bodies):
    """Counts no bytes yet, and has no routes."""

    def match(self, method: str, path: str) -> Any:
        return self

    def reserve(self, length: int) -> int:
        return 0


class Wire(asyncio.Transport):
    """Keeps what is written, and who reads."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.protocol: Any = protocol
        self.written: list[Any] = []
        self.reading = True
        self.closed = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written.append(data)

    def writelines(self, pieces: Any) -> None:
        self.written.extend(pieces)

    def close(self) -> None:
        self.closed = True


def head(length: int, *lines: str) -> bytes:
    return "\r\n".join(("POST / HTTP/1.1", "Host: h", f"Content-Length: {length}", *lines, "", "")).encode()


async def arrive(wire: Wire, data: bytes) -> None:
    """As an event loop has it: read into what is offered, for as long as reading is wanted."""
    view = memoryview(data)
    while view:
        await eventually_async(lambda: wire.reading)
        offered = wire.protocol.get_buffer(-1)
        size = min(len(offered), len(view))
        offered[:size] = view[:size]
        view = view[size:]
        wire.protocol.buffer_updated(size)


def loops() -> list[Any]:
    uvloop = pytest.importorskip("uvloop")
    return [
        pytest.param(uvloop.new_event_loop, id="uvloop"),
        pytest.param(asyncio.SelectorEventLoop, id="asyncio"),
    ]


@pytest.mark.parametrize("loop", loops())
@pytest.mark.parametrize("size", [100_000, 10 * MB])
def test_a_body_in_pieces_is_whole_and_what_follows_is_served(loop: Callable[[], Any], size: int) -> None:
    """Twice on one connection, each with a small request right behind it; most of a large body is never copied."""
    body = np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()
    small = head(3) + b"end"
    owner, answer = Bodies([b"ok"]), b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\nok"

    async def scene() -> None:
        made = await asyncio.get_running_loop().create_server(lambda: NotedLane(owner), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*made.sockets[0].getsockname())
        for cut in (1000, size - 1):
            writer.write(head(size) + body[:cut])
            await writer.drain()
            writer.write(body[cut:] + small)
            assert await asyncio.wait_for(reader.readexactly(2 * len(answer)), 30) == 2 * answer
        writer.close()
        made.close()
        await eventually_async(lambda: not owner.connections)

    NotedLane.copied = 0
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scene())
    assert [bytes(got) == want for got, want in zip(owner.bodies, [body, b"end"] * 2, strict=True)] == [True] * 4
    if size > 4 * READ_AT_ONCE:
        assert NotedLane.copied <= 4 * READ_AT_ONCE, "the first piece of each, and the small requests"


@pytest.mark.parametrize("loop", loops())
def test_a_client_that_leaves_within_a_large_body_is_forgotten(loop: Callable[[], Any]) -> None:
    owner = Bodies([])

    async def scene() -> None:
        made = await asyncio.get_running_loop().create_server(lambda: FastHttpProtocol(owner), "127.0.0.1", 0)
        client = socket.create_connection(made.sockets[0].getsockname())
        client.sendall(head(10 * MB) + b"x" * MB)
        await eventually_async(lambda: owner.connections)
        client.close()
        await eventually_async(lambda: not owner.connections)
        made.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scene())
    assert not owner.bodies


def test_the_memory_of_a_body_whose_client_leaves_is_free_at_once() -> None:
    lane = FastHttpProtocol(Bodies([]))
    wire = Wire(lane)
    lane.connection_made(wire)
    lane.data_received(head(10 * MB))
    memory = weakref.ref(wire.protocol.get_buffer(-1).obj)
    assert memory() is not None
    gc.disable()  # it may come late, or never
    try:
        wire.protocol.connection_lost(None)
        del wire, lane
        assert memory() is None
    finally:
        gc.enable()


def test_a_booting_server_does_not_wait_for_numpy_to_take_a_body() -> None:
    lane = FastHttpProtocol(Booting([]))
    wire = Wire(lane)
    lane.connection_made(wire)
    lane.data_received(head(MB))
    assert isinstance(wire.protocol.get_buffer(-1).obj, bytearray)


def test_a_large_body_that_stalls_is_ended_and_one_that_goes_on_is_not() -> None:
    lane = FastHttpProtocol(Bodies([]))
    wire = Wire(lane)
    lane.connection_made(wire)
    lane.data_received(head(10 * MB))
    now = monotonic()
    for _ in range(3):
        wire.protocol.buffer_updated(MB)
        now += SLOW_S + 1
        lane.close_if_overdue(now)
        assert not wire.closed
    lane.close_if_overdue(now + SLOW_S + 1)  # what has come is no credit for a stall
    assert wire.closed


def test_a_body_that_stalls_is_ended_sooner_while_memory_is_scarce() -> None:
    lane = FastHttpProtocol(Bodies([]))
    wire = Wire(lane)
    lane.connection_made(wire)
    lane.data_received(head(10 * MB))
    lane.close_if_overdue(monotonic() + SCARCE_S + 1, SCARCE_S)
    assert wire.closed


@pytest.mark.parametrize("text", ["{}", '{"odd": 1}', "x" * 63, "x" * 64])
def test_tensors_behind_the_json_are_aligned(text: str) -> None:
    values = np.arange(MB, dtype=np.float32)
    owner = Bodies([])
    lane = FastHttpProtocol(owner)
    wire = Wire(lane)
    lane.connection_made(wire)
    lane.data_received(head(len(text) + values.nbytes, f"Inference-Header-Content-Length: {len(text)}"))
    play(arrive(wire, text.encode() + values.tobytes()))
    seen = np.frombuffer(owner.bodies[0][len(text) :], np.float32)
    assert seen.__array_interface__["data"][0] % 64 == 0
    np.testing.assert_array_equal(seen, values)


def test_a_large_body_that_is_here_at_once_leaves_others_their_turn() -> None:
    owner = Bodies([b"ok"])
    large, small = FastHttpProtocol(owner), FastHttpProtocol(owner)
    wires = [Wire(large), Wire(small)]

    async def scene() -> None:
        for lane, wire in zip((large, small), wires, strict=True):
            lane.connection_made(wire)
        large.data_received(head(10 * MB))
        asyncio.get_running_loop().call_soon(small.data_received, head(3) + b"end")
        await arrive(wires[0], bytes(10 * MB))

    play(scene())
    assert [len(body) for body in owner.bodies] == [3, 10 * MB]


def test_a_connection_that_sends_many_requests_at_once_has_one_served_a_turn() -> None:
    """Whoever sends its only request meanwhile does not wait for all of them."""
    owner = Bodies([b"ok"])
    many, one = FastHttpProtocol(owner), FastHttpProtocol(owner)

    async def scene() -> None:
        for lane in (many, one):
            lane.connection_made(Wire(lane))
        many.data_received((head(4) + b"many") * 100)
        one.data_received(head(3) + b"one")
        await eventually_async(lambda: len(owner.bodies) == 101)

    play(scene())
    assert bytes(owner.bodies[1]) == b"one"


def test_an_idle_connection_holds_no_memory_of_its_last_body() -> None:
    owner = Bodies([])
    lane = FastHttpProtocol(owner)
    wire = Wire(lane)
    lane.connection_made(wire)
    lane.data_received(head(MB))
    reading = wire.protocol
    reading.buffer_updated(MB)
    assert wire.protocol is lane
    assert len(owner.bodies[0]) == MB
    assert len(reading.get_buffer(-1)) == 0, "uvloop keeps whoever read last"


def test_the_answer_of_a_model_that_gives_its_input_back_is_written_from_where_the_socket_was_read_to(
    tmp_path: Path,
) -> None:
    """Through every stage of the server: 10 MB are read, seen by the model, and written, all in one place."""
    values = np.random.default_rng(1).random(10 * MB // 4, np.float32)
    described = {"name": "x", "datatype": "FP32", "shape": [1, *values.shape]}
    text = json.dumps(
        {
            "inputs": [{**described, "parameters": {"binary_data_size": values.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()

    async def scene() -> None:
        write_python(tmp_path, "same", SAME)
        house = await House(tmp_path).start()
        limits, budget = house.server.limits, house.settings.server.max_bytes_in_flight
        owner = HttpServer(lambda call: HttpResponse(503))
        owner.open(
            Dispatcher(house.server, serving_protocols(), Admission(Access(house.settings.server), limits, budget))
        )
        lane = FastHttpProtocol(owner)
        wire = Wire(lane)
        lane.connection_made(wire)
        lines = head(len(text) + values.nbytes, f"Inference-Header-Content-Length: {len(text)}")
        lane.data_received(lines.replace(b"POST /", b"POST /v2/models/same/infer", 1))
        place = np.frombuffer(wire.protocol.get_buffer(-1), np.uint8)
        await arrive(wire, text + values.tobytes())
        await eventually_async(lambda: wire.written)
        assert wire.written[0].startswith(b"HTTP/1.1 200"), b"".join(wire.written)
        assert np.shares_memory(np.frombuffer(wire.written[-1], np.uint8), place)
        np.testing.assert_array_equal(np.frombuffer(wire.written[-1], np.float32), values)
        await house.registry.close()

    play(scene())


def test_a_batch_of_one_is_the_request_itself() -> None:
    array = np.ones((1, 4), np.float32)
    (answer,) = Echo().execute([InferRequest("m", {"x": Tensor("FP32", array)})])
    assert not isinstance(answer, Exception)
    assert answer["y"].array is array
