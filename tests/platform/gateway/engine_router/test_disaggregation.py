"""Prefill and decode apart: bodies of the protocols, and a real router before stand-ins of the engines."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.engines.engine import Engine
from tests.engines.sglang_engine import SGLangEngine
from tests.engines.vllm_engine import RoutingSidecar, VllmEngine
from tests.eventually import eventually_async
from tests.http_reply import Reply
from tests.platform.gateway.engine_router.routers import announce, router, until_ready
from tests.platform.gateway.linked import DEADLINE_S, ask, in_loop, read_reply

from pilotlight.gateway.engine_router.disaggregation import PROTOCOLS, SGLang, VllmNixl
from pilotlight.gateway.proxy.responses import RequestRejected
from pilotlight.gateway.routing_table import Replica
from pilotlight.k8s import names

CHAT = {"messages": [{"role": "user", "content": "one two three"}]}
PROMPT = {"prompt": "one two three"}
TEXT = "one two three"
LONG = json.dumps({**PROMPT, "user": "x" * (3 << 20)}).encode()  # the gateway pauses a client that sends so much


def test_a_document_can_name_every_protocol() -> None:
    assert tuple(PROTOCOLS) == names.DISAGGREGATIONS


def test_both_engines_of_sglang_get_the_address_and_a_fresh_number() -> None:
    forged = {**PROMPT, "bootstrap_host": "192.0.2.66", "bootstrap_room": 1}
    first, second = (SGLang().prefill_body(forged, "fd00::7", 8998) for _ in range(2))
    assert (first["bootstrap_host"], first["bootstrap_port"], first["prompt"]) == ("[fd00::7]", 8998, TEXT)
    assert len({1, first["bootstrap_room"], second["bootstrap_room"]}) == 3
    assert SGLang().decode_body(forged, first, {}) == first


@pytest.mark.parametrize("body", [{**PROMPT, "n": 2}, {"text": TEXT, "sampling_params": {"n": 2}}])
def test_parallel_samples_are_refused_for_sglang(body: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected, match="n must be 1"):
        SGLang().prefill_body(body, "a", 1)


def test_a_prefill_engine_of_vllm_computes_one_token_and_the_decoder_gets_its_parameters() -> None:
    body = {**CHAT, "stream": True, "stream_options": {}, "max_tokens": 9, "max_completion_tokens": 9, "min_tokens": 2}
    sent = VllmNixl().prefill_body(body, "a", 1)
    nowhere = {"remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}
    params = {"do_remote_decode": True, "do_remote_prefill": False, **nowhere}
    limits = {"max_tokens": 1, "max_completion_tokens": 1}
    assert sent == {**CHAT, **limits, "stream": False, "kv_transfer_params": params}
    assert VllmNixl().decode_body(body, sent, {"kv_transfer_params": {"x": 1}}) == {
        **body,
        "kv_transfer_params": {"x": 1},
    }
    assert VllmNixl().decode_body(body, sent, {}) == body


@pytest.mark.parametrize(
    ("more", "divisible"),
    [({"n": 2}, False), ({"prompt": ["a", "b"]}, False), ({"prompt": [[1], [2]]}, False), ({"prompt": [1, 2]}, True)],
)
def test_requests_of_several_prompts_have_no_prefill_half(more: dict[str, Any], divisible: bool) -> None:
    assert (VllmNixl().prefill_body({**PROMPT, **more}, "a", 1) is not None) == divisible


@asynccontextmanager
async def sglang(folder: Path) -> AsyncIterator[tuple[int, SGLangEngine, SGLangEngine]]:
    """The router's port, a prefill engine and a decoder."""
    prefilling, decoding = SGLangEngine("prefill", "prefill"), SGLangEngine("decode", "decode")
    async with prefilling.serving() as prefill, decoding.serving() as decode:
        settings = {"PROTOCOL": "sglang", "BOOTSTRAP_PORT": str(prefill.bootstrap_port)}
        async with routed(folder, prefill, decode, **settings) as port:
            yield port, prefill, decode


@asynccontextmanager
async def vllm(folder: Path) -> AsyncIterator[tuple[int, VllmEngine, VllmEngine]]:
    async with (
        VllmEngine("prefill").serving() as prefill,
        VllmEngine("decode").serving() as decode,
        routed(folder, prefill, decode, PROTOCOL="vllm") as port,
    ):
        yield port, prefill, decode


@asynccontextmanager
async def routed(folder: Path, prefill: Engine, decode: Engine, **settings: str) -> AsyncIterator[int]:
    """Health is checked at the start only: an engine that ends is not noticed before a request needs it."""
    announce(folder, "llama-engine", [prefill.config])
    announce(folder, "llama-decoder", [decode.config])
    async with router(folder, "prefill_decode", "llama-decoder", health_s="3600", **settings) as port:
        await until_ready(port)
        yield port


async def complete(
    port: int, body: Any, headers: Mapping[str, str] | None = None, path: str = "/v1/completions"
) -> Reply:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DEADLINE_S)) as session,
        session.post(f"http://127.0.0.1:{port}{path}", json=body, headers=headers) as reply,
    ):
        lower = {name.lower(): value for name, value in reply.headers.items()}
        return Reply(reply.status, lower, await reply.read())


async def sent(port: int, path: str, head: str, text: bytes) -> Reply:
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + text)
        try:
            return await read_reply(reader)
        finally:
            writer.close()


def words(reply: Reply) -> str:
    """The text of an answer, streamed or not."""
    assert reply.status == 200, reply
    if reply.headers["content-type"] != "text/event-stream":
        return str(reply.json()["choices"][0]["text"])
    events = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    return " ".join(json.loads(event)["choices"][0]["text"] for event in events)


@in_loop
async def test_engines_of_sglang_answer_together_and_not_without_the_router(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, prefill, decode):
        alone = await complete(decode.port, PROMPT)
        assert (alone.status, "without boostrap room id" in alone.json()["message"]) == (400, True)
        decode.requests.clear()
        assert words(await complete(port, PROMPT, {"X-Request-Id": "r-1", "Authorization": "Bearer t"})) == TEXT
        assert words(await complete(port, {**CHAT, "stream": True}, path="/v1/chat/completions")) == TEXT
        assert words(await complete(port, {"text": TEXT}, path="/generate?x=1")) == TEXT
        assert prefill.requests == decode.requests
        for headers in (prefill.headers[0], decode.headers[-3]):
            assert (headers["x-request-id"], headers["authorization"]) == ("r-1", "Bearer t")
        assert prefill.answered == decode.answered == 3
        assert prefill.aborted == 0
        assert (await ask(port, "/v1/models")).json()["data"] == [{"id": "decode"}]


@in_loop
async def test_numbers_never_repeat_under_load(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, prefill, _):
        replies = await asyncio.gather(*(complete(port, PROMPT) for _ in range(200)))
        assert {words(reply) for reply in replies} == {TEXT}
        assert len(prefill.used) == 200


@in_loop
async def test_a_body_arrives_in_any_framing(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, _, decode):
        text = json.dumps(PROMPT).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
        assert words(await sent(port, "/v1/completions", "Transfer-Encoding: chunked\r\n", chunks)) == TEXT
        assert "transfer-encoding" not in decode.headers[-1]
        assert words(await sent(port, "/v1/completions", f"Content-Length: {len(LONG)}\r\n", LONG)) == TEXT
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"Content-Length: {len(text)}\r\nExpect: 100-continue\r\n\r\n"
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}".encode())
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)).startswith(b"HTTP/1.1 100 ")
        writer.write(text)
        assert words(await asyncio.wait_for(read_reply(reader), DEADLINE_S)) == TEXT
        writer.close()


@pytest.mark.parametrize(
    ("head", "text", "status", "message"),
    [("Content-Length: 2\r\nContent-Encoding: gzip\r\n", b"xx", 415, "content-encoding"),
     ("Content-Length: 67108865\r\n", b"x", 413, "more than 64 MiB"),
     ("Content-Length: 2\r\n", b"[]", 400, "must be a JSON object"),
     ("Content-Length: 2\r\n", b"{{", 400, "must be a JSON object"),
     ("Content-Length: 7\r\n", b'{"n":2}', 400, "n must be 1")],
)  # fmt: skip
@in_loop
async def test_a_body_that_cannot_be_divided_is_refused(
    tmp_path: Path, head: str, text: bytes, status: int, message: str
) -> None:
    async with sglang(tmp_path) as (port, prefill, decode):
        reply = await sent(port, "/v1/completions", head, text)
        assert (reply.status, message in reply.json()["error"]) == (status, True)
        assert not prefill.requests + decode.requests


@in_loop
async def test_an_error_of_the_prefill_engine_is_the_answer_and_ends_the_decoder_s_half(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, prefill, decode):
        prefill.busy = True
        reply = await complete(port, PROMPT)
        assert (reply.status, reply.json()["message"]) == (503, "The server is overloaded.")
        prefill.broken = True
        reply = await complete(port, PROMPT)
        assert (reply.status, reply.json()) == (500, {"error": "the prefill engine failed"})
        await eventually_async(lambda: decode.aborted == len(decode.requests), "the decoder's half to end")


@in_loop
async def test_a_prefill_engine_that_dies_ends_the_request(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, prefill, decode):
        prefill.open.clear()
        asked = asyncio.create_task(complete(port, PROMPT))
        await eventually_async(lambda: prefill.requests and decode.requests, "both halves")
        prefill.hang_up()
        assert (await asked).status == 502
        await eventually_async(lambda: decode.aborted, "the decoder's half to end")


@in_loop
async def test_a_client_that_leaves_ends_both_halves(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, prefill, decode):
        prefill.open.clear()
        asked = asyncio.create_task(sent(port, "/v1/completions", f"Content-Length: {len(LONG)}\r\n", LONG))
        await eventually_async(lambda: prefill.requests and decode.requests, "both halves")
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        await eventually_async(lambda: prefill.aborted and decode.aborted, "both to end")


@in_loop
async def test_another_prefill_engine_is_called_where_one_cannot_be_reached(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, prefill, _):
        async with SGLangEngine("brief", "prefill").serving() as brief:
            brief.caches, brief.fetched = prefill.caches, prefill.fetched  # both are behind one bootstrap port
            announce(tmp_path, "llama-engine", [prefill.config, brief.config])
            await eventually_async(lambda: noticed(port, brief), "the second one")
        for _ in range(4):
            assert words(await complete(port, PROMPT)) == TEXT


async def noticed(port: int, engine: Engine) -> bool:
    await complete(port, {**PROMPT, "stream": True})
    return bool(engine.requests)


@in_loop
async def test_engines_of_vllm_answer_together(tmp_path: Path) -> None:
    async with vllm(tmp_path) as (port, prefill, decode):
        assert words(await complete(port, {**PROMPT, "max_tokens": 2})) == "one two"
        assert words(await complete(port, {**CHAT, "stream": True}, path="/v1/chat/completions")) == TEXT
        assert (prefill.prefills, decode.prefills, len(prefill.blocks)) == (2, 0, 0)
        assert {each["x-request-id"] for each in prefill.headers} == {each["x-request-id"] for each in decode.headers}
        assert words(await complete(port, {**PROMPT, "n": 2})) == TEXT
        assert (prefill.prefills, decode.prefills) == (2, 1)


@in_loop
async def test_a_client_of_vllm_that_leaves_before_the_decoder_has_the_request(tmp_path: Path) -> None:
    async with vllm(tmp_path) as (port, prefill, decode):
        prefill.open.clear()
        asked = asyncio.create_task(complete(port, PROMPT))
        await eventually_async(lambda: prefill.requests, "the prefill half")
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        await eventually_async(lambda: prefill.aborted, "the prefill half to end")
        assert not decode.requests


@in_loop
async def test_an_overloaded_prefill_engine_of_vllm_is_passed_over(tmp_path: Path) -> None:
    async with vllm(tmp_path) as (port, prefill, decode), VllmEngine("second").serving() as second:
        prefill.busy = True
        assert (await complete(port, PROMPT)).status == 503
        announce(tmp_path, "llama-engine", [prefill.config, second.config])
        await eventually_async(lambda: noticed(port, second), "the second one")
        for _ in range(3):
            assert words(await complete(port, PROMPT)) == TEXT
        too_long = await complete(port, {"prompt": "x " * 1000})
        assert (too_long.status, too_long.json()["object"]) == (400, "error")
        assert decode.prefills == 0


@in_loop
async def test_a_sidecar_of_llm_d_calls_the_prefill_engine_that_the_header_names(tmp_path: Path) -> None:
    async with (
        VllmEngine("prefill").serving() as prefill,
        VllmEngine("decode").serving() as decode,
        RoutingSidecar(decode).serving() as sidecar,
        routed(tmp_path, prefill, sidecar, PROTOCOL="llm-d") as port,
    ):
        reply = await complete(port, PROMPT, {"x-prefiller-host-port": "192.0.2.66:1"})
        assert reply.json()["choices"][0]["text"] == TEXT
        assert (prefill.prefills, decode.prefills) == (1, 0)


@in_loop
async def test_a_router_is_not_ready_without_a_prefill_engine(tmp_path: Path) -> None:
    async with sglang(tmp_path) as (port, _, _):
        announce(tmp_path, "llama-engine", [Replica("dead", 1)])
        await eventually_async(lambda: _not_ready(port), "the prefill engine to go")
        assert (await complete(port, PROMPT)).status == 503


async def _not_ready(port: int) -> bool:
    return (await ask(port, "/ready")).status == 503
