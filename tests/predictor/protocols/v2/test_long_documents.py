"""Megabytes of JSON: read and written in pieces and off the event loop, with the answers of the short way."""

import asyncio
import gzip
import json
import threading
from collections.abc import Awaitable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eventually import eventually_async
from tests.predictor.in_process_server import House, play, write_times
from tests.serving import RunningServer, json_tensor, read_answer, rendered

from pilotlight_predictor.core.requests import InferRequest, InferResponse, RequestedOutput
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.protocols import json_values
from pilotlight_predictor.protocols.json_values import decode_values
from pilotlight_predictor.protocols.v2 import response_codec
from pilotlight_predictor.protocols.v2.infer import infer
from pilotlight_predictor.protocols.v2.response_codec import encode_response

SHAPES = ((6,), (2, 3), (3, 2), (1, 2, 3), (2, 1, 3), (0,), (2, 0), (), (5,), (1, 6))
NUMBERS = st.one_of(st.integers(-3, 300), st.floats(width=32), st.booleans(), st.sampled_from(["NaN", "]", ",", None]))
DATA = st.recursive(st.lists(NUMBERS, max_size=7), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=9)


def decoded(datatype: str, shape: tuple[int, ...], text: bytes) -> tuple[Any, ...]:
    """The array's bytes and shape, or what is wrong."""
    try:
        array = decode_values("x", datatype, shape, msgspec.Raw(text)).array
    except BadRequest as error:
        return (str(error),)
    return array.tobytes(), array.shape, array.dtype


def as_given(data: list[Any], spaced: bool) -> bytes:
    return json.dumps(data, separators=(" , ", ":") if spaced else (",", ":")).encode()


@given(DATA, st.sampled_from(SHAPES), st.sampled_from(["FP32", "BF16", "INT8", "BOOL", "UINT64"]), st.booleans())
def test_values_read_in_pieces_are_those_read_at_once(
    data: list[Any], shape: tuple[int, ...], datatype: str, spaced: bool
) -> None:
    text = as_given(data, spaced)
    at_once = decoded(datatype, shape, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "LONG", 0)
        patch.setattr(json_values, "PIECE", 3)
        assert decoded(datatype, shape, text) == at_once


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2), (1, 6)])
def test_flat_and_nested_values_are_read_in_pieces(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "LONG", 0)
    monkeypatch.setattr(json_values, "PIECE", 3)
    monkeypatch.setattr(json_values, "_decode_any", None)  # the way for everything else
    array = np.arange(6, dtype="f4").reshape(shape)
    for data in (array.tolist(), array.ravel().tolist()):
        assert np.array_equal(decode_values("x", "FP32", shape, msgspec.Raw(json.dumps(data).encode())).array, array)


@pytest.mark.parametrize("binary", [(), ("b",), ("a", "b")])
def test_answers_written_in_pieces_are_those_written_at_once(
    binary: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {
        "a": Tensor("FP32", np.array([[1.5, np.nan, 3], [np.inf, -np.inf, 0]], "f4")),
        "b": Tensor("INT8", np.arange(7, dtype="i1")),
        "c": Tensor("BYTES", np.array([b"null", b"x"], object)),
        "d": Tensor("FP64", np.zeros((0, 2))),
    }
    request = InferRequest("m", {}, outputs=tuple(RequestedOutput(name, name in binary) for name in outputs))
    response = InferResponse("m", 3, outputs, "an id", {"more": None})
    length, at_once = encode_response(request, response)
    for module in (json_values, response_codec):
        monkeypatch.setattr(module, "LONG_ARRAY", 2)
    again, in_pieces = encode_response(request, response)
    assert (again, b"".join(in_pieces)) == (length, b"".join(at_once))
    assert json.loads(b"".join(in_pieces)[:length])["outputs"][0]["name"] == "a"


COUNT = 2_000_000
NUMBERS_TEXT = json.dumps(np.random.default_rng(0).random(COUNT).round(9).tolist()).encode()  # 23 MB


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_the_server_answers_others_while_it_reads_and_writes_megabytes(server: RunningServer, packed: bool) -> None:
    """On the loop, reading alone would take half of the time; a busy machine has three minutes to show that it does
    not."""
    text = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":%b}]}' % (COUNT, NUMBERS_TEXT)
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"} if packed else {}
    body = gzip.compress(text, 1) if packed else text
    raw = rendered("POST", "/v2/models/identity_fp32/infer", body, headers, server.address)
    deadline, shares = monotonic() + 180, [longest_wait_while(server, raw)]
    while shares[-1] >= 0.25:
        assert monotonic() < deadline, shares
        shares.append(longest_wait_while(server, raw))


def longest_wait_while(server: RunningServer, raw: bytes) -> float:
    """How long a health check took at most while the request was being answered, as a share of that time."""
    answered, took = threading.Event(), [0.0]

    def ask() -> None:
        try:
            with server.connect(60) as connection:
                started = monotonic()
                connection.sendall(raw)
                assert read_answer(connection).status == 200
                took[0] = monotonic() - started
        finally:
            answered.set()

    asking = threading.Thread(target=ask)
    asking.start()
    longest = 0.0
    while not answered.is_set():
        started = monotonic()
        assert server.get("/v2/health/live").status == 200
        longest = max(longest, monotonic() - started)
    asking.join()
    assert took[0], "it was not answered"
    return longest / took[0]


async def asked_while_codecs_are_busy(house: House, meanwhile: Any) -> HttpResponse:
    """The reply to a long request whose turn to be read comes after `meanwhile`."""
    free, replies = threading.Event(), list[HttpResponse]()
    busy = [asyncio.ensure_future(house.server.codecs.run(free.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    text = json.dumps({"id": "x" * (1 << 20), "inputs": [json_tensor("x", "FP32", [1, 1], [3])]}).encode()
    call = HttpRequest("POST", "/v2/models/m/infer", "", {}, text, "", replies.append, 0.0)
    call.params = {"model": "m"}
    outcome = infer(house.server, call)
    assert outcome is not None
    reading = asyncio.ensure_future(outcome)
    await asyncio.sleep(0)
    await meanwhile(call)
    free.set()
    await asyncio.gather(*busy)
    return await reading


async def status_of(asked: Awaitable[HttpResponse]) -> int:
    try:
        return (await asked).status
    except PredictorError as error:
        return error.status


@pytest.mark.parametrize(("what", "status"), [("nothing", 200), ("leaves", 499), ("unloaded", 404)])
def test_what_happens_while_a_long_request_waits_to_be_read_counts(tmp_path: Path, what: str, status: int) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("m",)}).start()

        async def meanwhile(call: HttpRequest) -> None:
            if what == "leaves":
                call.abandon()
            elif what == "unloaded":
                await house.control.unload("m", False)

        assert await status_of(asked_while_codecs_are_busy(house, meanwhile)) == status
        await eventually_async(lambda: house.metrics.in_flight == 0)

    play(scene())
