"""What the fast lane knows of who asks again: who asks alone is answered at once, and no gate is forgotten."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
from tests.eventually import eventually_async
from tests.onnx_models import write_identity
from tests.predictor.in_process_server import House, play

from pilotlight_predictor.frontends.http.fast_protocol import SOLE_CLIENT_AFTER, FastHttpProtocol
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.protocols.v2.infer import infer

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'


class Wire(asyncio.Transport):
    """Lets the fast lane write."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None: ...


class Notes:
    """Connection owner that answers everything and notes who was alone; `gate`: how often it lets a request pass."""

    def __init__(self, gate: int | None = None) -> None:
        self.gate = gate
        self.asked = 0
        self.left: list[FastHttpProtocol] = []
        self.connections: set[FastHttpProtocol] = set()
        self.last_active: FastHttpProtocol | None = None
        self.closing = False
        self.alone: list[bool] = []

    def match(self, method: str, path: str) -> Any:
        return self

    def admits(self, head: Any, peer: str, match: Any) -> bool:
        self.asked += 1
        return self.gate is None or self.asked <= self.gate

    def recheck(self, match: Any) -> bool:
        return self.gate is not None

    def reserve(self, length: int) -> int:
        return 0

    def release(self, length: int) -> None: ...

    def switch_to_aiohttp(self, lane: FastHttpProtocol) -> None:
        self.left.append(lane)

    def serve(self, call: HttpRequest, match: Any) -> None:
        self.alone.append(call.sole_client)
        call.finish(HttpResponse(200))

    def connection(self) -> FastHttpProtocol:
        lane = FastHttpProtocol(self)
        lane.connection_made(Wire())
        return lane


def test_a_connection_is_alone_while_no_other_one_asks_anything() -> None:
    owner = Notes()
    one, other = owner.connection(), owner.connection()
    for _ in range(SOLE_CLIENT_AFTER + 2):
        one.data_received(GET)
    other.data_received(GET)
    one.data_received(GET)
    assert owner.alone == [False] * SOLE_CLIENT_AFTER + [True] * 2 + [False] * 2


def test_a_gate_is_asked_for_each_request_of_a_connection() -> None:
    owner = Notes(gate=3)
    lane = owner.connection()
    for _ in range(4):
        lane.data_received(GET)
    assert (len(owner.alone), owner.asked, owner.left) == (3, 4, [lane])


def test_where_nobody_is_refused_a_head_that_repeats_is_judged_once() -> None:
    owner = Notes()
    lane = owner.connection()
    for text in (GET, GET, GET.replace(b"localhost\r", b"127.0.0.1\r"), GET, GET):
        lane.data_received(text)
    assert (len(owner.alone), owner.asked, owner.left) == (5, 3, [])


def test_the_last_to_ask_is_forgotten_when_it_leaves() -> None:
    owner = Notes()
    lane = owner.connection()
    lane.data_received(GET)
    assert owner.last_active is lane
    lane.connection_lost(None)
    assert owner.last_active is None


def ask(house: House, replies: list[HttpResponse], alone: bool) -> HttpRequest:
    call = HttpRequest("POST", "/v2/models/m/infer", "", {}, BODY, "", replies.append, 0.0)
    call.params, call.sole_client = {"model": "m"}, alone
    infer(house.server, call)
    return call


def test_the_answer_to_one_who_is_alone_needs_no_turn_of_the_loop(tmp_path: Path) -> None:
    async def scene() -> None:
        write_identity(tmp_path, "m", "FP32", ("n", 2), "max_batch_size: 8 dynamic_batching { }")
        house = await House(tmp_path).start()
        replies: list[HttpResponse] = []
        while house.registry.find("m").executor.inline_call() is None:  # until it has proved to be quick
            ask(house, replies, alone=False)
            await eventually_async(lambda: house.metrics.in_flight == 0)
        replies.clear()
        ask(house, replies, alone=True)
        (reply,) = replies
        assert isinstance(reply.body, list)
        assert orjson.loads(b"".join(reply.body))["outputs"][0]["data"] == [1, 2]
        stats, executed = house.registry.find("m").stats, house.registry.find("m").stats.execution_count
        ask(house, replies, alone=False)
        ask(house, replies, alone=True)  # somebody waits already: it joins the batch
        assert len(replies) == 1
        await eventually_async(lambda: len(replies) == 3)
        assert (stats.execution_count - executed, house.metrics.in_flight) == (1, 0)

    play(scene())
