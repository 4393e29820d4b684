"""Servers that lie or break off: an error with a subject, no exception of Python's insides, no foreign response."""

import asyncio
import gzip
import json
import math
import os
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.platform.client.conftest import Ask
from tests.platform.client.scripted_server import METADATA, RESULT, reply, scripted

from pilotlight.client import AsyncClient, Client, InvalidInput, ResponseError
from pilotlight.client import openai as openai_operations
from pilotlight.client import session as client_session
from pilotlight.contract import HEADER_COLD_START, HEADER_INFERENCE_LENGTH

READY = reply(200, METADATA)
OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1]}
ONCE = {"retries": 0, "timeout": 30.0}


def raw(body: bytes, status: int = 200, /, **headers: Any) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Some\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode("latin-1") + body


def binary(memory: bytes, length: int | None = None, **output: Any) -> bytes:
    """A response with one output of `memory`; `length` is the size of the JSON as the server gives it."""
    sized = {**OUTPUT, "parameters": {"binary_data_size": len(memory)}, **output}
    document = json.dumps({"model_name": "m", "outputs": [sized]}).encode()
    return raw(document + memory, **{HEADER_INFERENCE_LENGTH: len(document) if length is None else length})


@pytest.mark.parametrize(
    "answer",
    [
        binary(b"abcd", parameters={"binary_data_size": -4}),
        binary(b"abcd", length=-4),
        binary(b"abc"),
        binary(b"abcd", shape=[-1]),
        binary(b"abcd", shape=None),
        binary(b"abcd", shape="1"),
        binary(b"abcd", datatype="FP31"),
        binary(b"abcd", datatype=[]),
        binary(b"abcd", name=[]),
        binary(b"\xff\0\0\0abcd", datatype="BYTES"),
        binary(b"ab", datatype="BYTES"),
        reply(200, {"outputs": [OUTPUT]}),
        reply(200, {"outputs": [{**OUTPUT, "datatype": "BYTES", "data": [5]}]}),
        reply(200, {**RESULT, "parameters": [1]}),
    ],
)
def test_outputs_that_lie_are_a_response_error(ask: Ask, answer: bytes) -> None:
    with scripted(READY, answer) as server, pytest.raises(ResponseError):
        ask(server.url, "infer", "m", [1.0], client=ONCE)["y"]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("models", reply(200, {"models": 3})),
        ("models", raw(b"xx", Content_Encoding="gzip")),
        ("models", raw(gzip.compress(b"{}" * 99)[:-9], Content_Encoding="gzip")),
        ("infer", reply(200, {"inputs": None})),
        ("infer", reply(200, {"inputs": [{"name": "x"}]})),
        ("metadata", raw(b"[" * 100_000, 500)),
        ("embed", reply(200, {})),
        ("embed", reply(200, {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]})),
        ("rerank", reply(200, {"results": [{"index": 1, "relevance_score": 0.5}]})),
        ("rerank", reply(200, {"results": [{"index": 0}]})),
        ("score", reply(200, {"data": [{"index": 0, "score": "best"}]})),
        ("chat", reply(200, {"choices": [1]})),
        ("chat", reply(200, {"choices": [{"message": "text"}]})),
        ("chat", reply(200, {"usage": 5})),
        ("stream_chat", raw(b"data: {\n\n")),
        ("stream_chat", raw(b"data: 5\n\n")),
        ("stream_chat", raw(b"data: " + b"[" * 100_000 + b"\n\n")),
        ("stream_chat", raw(b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n')),
    ],
)
def test_documents_of_another_form_are_a_response_error(ask: Ask, method: str, answer: bytes) -> None:
    several = {"models": [], "infer": ["m", [1.0]], "rerank": ["m", ["a"]], "score": ["m", "a"]}
    arguments: list[Any] = several.get(method, ["m"])
    with scripted(answer) as server, pytest.raises(ResponseError):
        ask(server.url, method, *arguments, client=ONCE)


@pytest.mark.parametrize("listed", [reply(200, {"x": 1}), raw(b"<html>")])
def test_a_list_of_models_in_no_known_form_is_a_response_error(ask: Ask, listed: bytes) -> None:
    with scripted(reply(404, {}), listed) as server, pytest.raises(ResponseError, match="models"):
        ask(server.url, "models", client=ONCE)


def test_what_grows_without_end_is_cut_off(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "MAX_UNPACKED", 1000)
    monkeypatch.setattr(openai_operations, "MAX_EVENT", 1000)
    packed = gzip.compress(b'{"models": ["' + b"m" * 1000 + b'"]}')
    with scripted(raw(packed, Content_Encoding="gzip")) as server, pytest.raises(ResponseError, match="more than 1000"):
        ask(server.url, "models", client=ONCE)
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + b"x" * 4096
    with scripted(endless) as server, pytest.raises(ResponseError, match="more than 1000"):
        ask(server.url, "stream_chat", "a", client=ONCE)


def test_interim_responses_may_be_many(ask: Ask) -> None:
    with scripted(b"HTTP/1.1 100\r\n\r\n" * 8000 + READY) as server:
        assert ask(server.url, "metadata", "m", client=ONCE)["name"] == "m"


def test_numbers_of_headers_are_of_plain_digits(ask: Ask) -> None:
    busy = raw(b"{}", 503, Retry_After="²")
    with scripted(busy, raw(json.dumps(METADATA).encode(), **{HEADER_COLD_START: "²"})) as server:
        assert ask(server.url, "metadata", "m")["name"] == "m"


def test_a_server_that_starts_is_not_asked_in_a_tight_loop(ask: Ask) -> None:
    with scripted(reply(503, {"error": "loading"}, {"Retry-After": "0"})) as server, pytest.raises(TimeoutError):
        ask(server.url, "metadata", "m", timeout=0.5)
    assert len(server.requests) <= 10


def test_names_cannot_end_the_request_line(ask: Ask) -> None:
    with scripted(READY) as server:
        ask(server.url, "metadata", "m", version="1 HTTP/1.1\r\nX-Injected: 1\r\nX: ")
    assert "\r\nX-Injected" not in server.requests[0]
    with scripted(READY) as server, pytest.raises(InvalidInput, match="a path"):
        ask(server.url, "metadata", "..")
    assert server.requests == []


@pytest.mark.parametrize("options", [{"token": "тест"}, {"headers": {"X": "a\r\nb"}}])
def test_headers_are_ascii(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="header"):
        Client("http://localhost", **options)
    with pytest.raises(InvalidInput, match="%XX"):
        Client("http://localhost/größe")


@pytest.mark.parametrize("timeout", [math.nan, math.inf, 0, -1])
def test_a_timeout_is_a_number_that_sockets_take(ask: Ask, timeout: float) -> None:
    with scripted(READY) as server, pytest.raises(InvalidInput, match="timeout"):
        ask(server.url, "metadata", "m", timeout=timeout)


def test_a_response_nobody_asked_for_is_not_taken_for_the_next() -> None:
    async def scenario() -> None:
        with scripted(READY) as server:
            async with AsyncClient(server.url) as client:
                await client.metadata("m")
                server.open[0].sendall(reply(200, {"name": "poison"}))
                reader = client._transport._idle[0][0][0]
                await eventually_async(lambda: bool(reader._buffer))  # type: ignore[attr-defined]
                assert (await client.metadata("m"))["name"] == "m"

    asyncio.run(scenario())


def test_a_forked_process_takes_no_connection_of_its_parent() -> None:
    with scripted(READY) as server, Client(server.url) as client:
        client.metadata("m")
        child = os.fork()
        if not child:
            os._exit(client.metadata("m")["name"] != "m")
        assert os.waitpid(child, 0)[1] == 0
        client.metadata("m")
        assert server.connections == 2
