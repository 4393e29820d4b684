"""Who is answered with a whole batch gets the very answer that it would get alone."""

import asyncio
import gzip
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tests.eventually import eventually_async
from tests.onnx_models import write_identity, write_model
from tests.predictor.in_process_server import House, play
from tests.serving import RunningServer, read_answer, rendered

from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.core.tensors import FROM_NUMPY, Array, Tensor, tensor
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.protocols.v2.infer import infer
from pilotlight_predictor.protocols.v2.response_codec import encode_response, encode_rows

BATCHED = "max_batch_size: 16 dynamic_batching { }"
PLAIN = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [%d, 2.5]}]}'
THREE = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 2], "data": [%d, 2.5, 1, 2, 3, 4]}]}'
NAMED = b'{"outputs": [{"name": "y"}], ' + PLAIN[1:]


def alone(response: InferResponse, rows: Sequence[int]) -> list[bytes]:
    bodies, start = [], 0
    for count in rows:
        cut = {n: Tensor(t.datatype, t.array[start : start + count]) for n, t in response.outputs.items()}
        own = InferResponse(response.model, response.version, cut)
        length, pieces = encode_response(InferRequest("m", {}), own)
        assert length is None
        bodies.append(b"".join(pieces))
        start += count
    return bodies


def edges(dtype: Any) -> Array:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, info.max, 0, 1, 7, 99], dtype)
    if dtype.kind == "b":
        return np.array([True, False, True, True, False, False])
    top = np.finfo(dtype)
    return np.array([top.max, -top.max, top.smallest_subnormal, -0.0, 0.1, 1e-7], dtype)


@pytest.mark.parametrize("rows", [(1,) * 6, (2, 2, 2), (3, 1, 2), (6,)], ids=str)
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (6, 2, 2), (6, 1, 1, 2)], ids=str)
@pytest.mark.parametrize("datatype", sorted(FROM_NUMPY.values()))
def test_rows_are_written_as_each_request_would_write_them(datatype: str, shape: Any, rows: Any) -> None:
    dtype = next(dtype for dtype, name in FROM_NUMPY.items() if name == datatype)
    array = np.resize(edges(dtype), shape)
    outputs = {"y": tensor(array), 'z "ü"': tensor(array[::-1]), "t": tensor(np.asfortranarray(array))}
    for names in (["y"], ["t", 'z "ü"'], list(outputs)):
        response = InferResponse("m ü", 3, {name: outputs[name] for name in names})
        assert encode_rows(response, rows) == alone(response, rows)


@pytest.mark.parametrize(
    "output",
    [
        tensor(np.array([[1.0], [np.nan]], "f4")),
        tensor(np.array([[-np.inf], [1.0]])),
        tensor(np.zeros((2, 0), "i4")),
        tensor(np.array([[b"a"], [b"b"]], object)),
        Tensor("BF16", np.array([[1], [2]], "u2")),
        tensor(np.zeros((2, 1 << 15), "u1")),
    ],
    ids=["nan", "infinity", "empty", "strings", "bf16", "long"],
)
def test_what_is_not_written_so_is_left_to_each(output: Tensor) -> None:
    assert encode_rows(InferResponse("m", 1, {"y": output}), (1, 1)) is None
    assert encode_rows(InferResponse("m", 1, {"n": tensor(np.array([1, 2])), "y": output}), (1, 1)) is None


def test_an_answer_without_outputs_is_left_to_each() -> None:
    assert encode_rows(InferResponse("m", 1, {}), (1, 1)) is None


class Callers:
    """Ask within one turn of the loop, and keep what each is told."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.replies: list[list[HttpResponse]] = []

    def ask(self, body: bytes, headers: dict[str, str] | None = None) -> HttpRequest:
        told: list[HttpResponse] = []
        call = HttpRequest("POST", "/v2/models/m/infer", "", headers or {}, body, "", told.append, 0.0)
        call.params = {"model": "m"}
        self.replies.append(told)
        infer(self._house.server, call)
        return call

    async def all(self) -> list[Any]:
        await eventually_async(lambda: all(self.replies))
        assert [len(told) for told in self.replies] == [1] * len(self.replies)
        return [(told[0].status, joined(told[0])) for told in self.replies]


def joined(reply: HttpResponse) -> bytes:
    assert isinstance(reply.body, list)
    return b"".join(reply.body)


async def one_by_one(house: House, bodies: Sequence[bytes]) -> list[Any]:
    found = []
    for body in bodies:
        caller = Callers(house)
        caller.ask(body)
        found += await caller.all()
    return found


WITH_ID = b'{"id": "7", ' + PLAIN[1:]
MIXES: dict[str, list[bytes]] = {
    "one form": [PLAIN % n for n in range(6)],
    "forms of one kind": [PLAIN % 1, THREE % 2, PLAIN % 3, THREE % 4],
    "outputs by name": [NAMED % n for n in range(4)],
    "outputs by name and not": [NAMED % 1, PLAIN % 2, NAMED % 3],
    "an id of its own each": [WITH_ID.replace(b"7", b"%d: <ok>" % n) % n for n in range(4)],
    "ids between": [PLAIN % 1, WITH_ID % 2, PLAIN % 3],
    "an id that JSON writes otherwise": [PLAIN % 1, WITH_ID.replace(b"7", b"\\u00e9\\n") % 2, WITH_ID % 3],
    "a request that fails": [PLAIN % 1, PLAIN.replace(b"%d", b'"one"'), PLAIN % 3],
    "numbers without a name in JSON": [PLAIN % 0, PLAIN % 1, PLAIN % 2],
}


@pytest.mark.parametrize("mix", list(MIXES))
def test_answers_are_those_that_each_would_get_alone(tmp_path: Path, mix: str) -> None:
    async def scene() -> None:
        nodes, shape = [("Div", ["x", "x"], ["q"]), ("Add", ["x", "q"], ["y"])], ("FP32", ("n", 2))
        write_model(tmp_path, "m", nodes, {"x": shape}, {"y": shape}, BATCHED)
        house, fresh = await House(tmp_path).start(), await House(tmp_path).start()
        await one_by_one(
            house, [PLAIN % 9, THREE % 9, NAMED % 9, WITH_ID % 9] * 3
        )  # from here on their forms are known
        stats, callers = house.registry.find("m").stats, Callers(house)
        executed = stats.execution_count
        refused = 0
        for body in MIXES[mix]:
            try:
                callers.ask(body)
            except Exception:  # the dispatcher's to answer
                callers.replies.pop()
                refused += 1
        answers = await callers.all()
        good = [body for body in MIXES[mix] if b'"one"' not in body]
        assert refused == len(MIXES[mix]) - len(good)
        assert answers == await one_by_one(fresh, good)
        assert all(status == 200 for status, _ in answers)
        assert house.registry.find("m").templates.batch_reply is not None
        assert (stats.execution_count - executed, house.metrics.in_flight) == (1, 0)
        assert house.metrics.request("m", 1, "v2", 200).count == 12 + len(good)

    play(scene())


def test_one_who_leaves_or_cannot_be_told_costs_nobody_an_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        write_identity(tmp_path, "m", "FP32", ("n", 2), BATCHED)
        house = await House(tmp_path).start()
        await one_by_one(house, [PLAIN % 9] * 3)
        callers = Callers(house)
        calls = [callers.ask(PLAIN % n) for n in range(4)]
        calls[1].abandon()
        calls[2].finish = refuse
        callers.replies.pop(2)
        answers = await callers.all()
        assert [status for status, _ in answers] == [200, 499, 200]
        assert [orjson.loads(answers[n][1])["outputs"][0]["data"] for n in (0, 2)] == [[0, 2.5], [3, 2.5]]
        assert (house.metrics.in_flight, house.registry.find("m").stats.failures["CANCELED"]) == (0, 1)
        assert all(call.on_abandon is None for call in calls)

    play(scene())


def refuse(reply: HttpResponse) -> None:
    raise OSError("gone")


def test_each_answer_is_packed_as_its_own_client_likes_it(tmp_path: Path) -> None:
    async def scene() -> None:
        write_identity(tmp_path, "m", "FP32", ("n", 200), BATCHED)
        house = await House(tmp_path).start()
        body = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 200], "data": [0.5] * 200}]})
        await one_by_one(house, [body] * 3)
        callers = Callers(house)
        for headers in ({}, {"accept-encoding": "gzip"}, {"accept-encoding": "br"}):
            callers.ask(body, headers)
        (_, plain), (_, packed), (_, other) = await callers.all()
        assert plain == other == gzip.decompress(packed)
        assert callers.replies[1][0].headers == {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        assert callers.replies[2][0].headers is None

    play(scene())


def test_a_replaced_version_answers_those_who_asked_it(tmp_path: Path) -> None:
    async def scene() -> None:
        write_identity(tmp_path, "m", "FP32", ("n", 2), BATCHED)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("m",)}).start()
        await one_by_one(house, [PLAIN % 9] * 3)
        callers = Callers(house)
        for n in range(3):
            callers.ask(PLAIN % n)
        unloading = asyncio.ensure_future(house.registry.unload("m"))
        assert [status for status, _ in await callers.all()] == [200] * 3
        await unloading
        await house.control.load("m", None, {})
        assert (await one_by_one(house, [PLAIN % 4]))[0][0] == 200

    play(scene())


def test_over_many_connections_everybody_gets_its_own(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    """All ask at once, again and again: with an id of their own, without one, with three rows, with an error."""
    write_identity(tmp_path, "m", "FP32", ("n", 2), BATCHED)
    server = serve(tmp_path)
    kinds = [PLAIN, WITH_ID, THREE, NAMED, PLAIN.replace(b"2.5", b'"x"')]
    with ExitStack() as opened:
        connections = [opened.enter_context(server.connect()) for _ in range(20)]
        for turn in range(30):
            sent = [kinds[(turn + number) % len(kinds)] % (100 * turn + number) for number in range(20)]
            for connection, body in zip(connections, sent, strict=True):
                connection.sendall(rendered("POST", "/v2/models/m/infer", body, {}, server.address))
            for connection, body in zip(connections, sent, strict=True):
                answer = read_answer(connection)
                assert answer.status == (400 if b'"x"]' in body else 200), body
                if answer.status == 200:
                    asked, told = orjson.loads(body), answer.json()
                    assert told["outputs"] == [{**asked["inputs"][0], "name": "y"}]
                    assert told.get("id") == asked.get("id")
