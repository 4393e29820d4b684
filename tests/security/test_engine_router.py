"""Attacks on the router of disaggregated engines by its clients: what they send must not say where KV caches are."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.platform.gateway.engine_router.routers import announce, router, until_ready
from tests.platform.gateway.engine_router.test_disaggregation import complete, sent
from tests.platform.gateway.linked import in_loop

from pilotlight.gateway.routing_table import Replica

pytestmark = pytest.mark.security
FORGED = {
    "bootstrap_host": "192.0.2.66", "bootstrap_port": 1, "bootstrap_room": 7,
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "192.0.2.66", "remote_block_ids": [1]},
}  # fmt: skip
HEADERS = {
    "X-Prefiller-Host-Port": "192.0.2.66:1", "X-Prefiller-Url": "http://192.0.2.66:1",
    "X-Data-Parallel-Host-Port": "192.0.2.66:1", "X-Encoder-Hosts-Ports": "192.0.2.66:1",
}  # fmt: skip
ATTACKER = "192.0.2.66"


class Recorder:
    """An engine that takes every request, and answers a prefill of vLLM without parameters."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.requests.append((request.path, dict(request.headers), await request.read()))
        return web.json_response({"choices": [{"text": "one"}]})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Replica]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield Replica(f"r{self.port}", self.port, "127.0.0.1")
        finally:
            await runner.cleanup()


@asynccontextmanager
async def routed(folder: Path, protocol: str) -> AsyncIterator[tuple[int, Recorder, Recorder]]:
    prefill, decode = Recorder(), Recorder()
    async with prefill.serving() as engine, decode.serving() as decoder:
        announce(folder, "llama-engine", [engine])
        announce(folder, "llama-decoder", [decoder])
        async with router(folder, "prefill_decode", "llama-decoder", health_s="3600", PROTOCOL=protocol) as port:
            await until_ready(port)
            yield port, prefill, decode


PATHS = [
    "/v1/completions", "/v1/chat/%63ompletions", "//v1/completions", "/v1/./completions", "/generate", "/g%65nerate",
    "/v1/responses", "/invocations", "/v1/completions/", "/V1/Completions",
]  # fmt: skip
BODIES: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": ["a", "b"]}, {"prompt": "a", "stream": True}]


@pytest.mark.parametrize("protocol", ["sglang", "vllm"])
@in_loop
async def test_no_request_of_a_client_says_where_its_kv_cache_is(protocol: str, tmp_path: Path) -> None:
    async with routed(tmp_path, protocol) as (port, prefill, decode):
        for path in PATHS:
            for body in BODIES:
                await complete(port, {**body, **FORGED}, path=path)
                text = json.dumps({**body, **FORGED}).encode()
                for head in ("", "Content-Type:\r\n"):  # which FastAPI reads as JSON
                    await sent(port, path, f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n", text)
        for path, _, text in (*prefill.requests, *decode.requests):
            assert ATTACKER.encode() not in text, path
        assert len(decode.requests) >= len(PATHS)


@in_loop
async def test_no_header_of_a_client_names_the_engine_for_the_sidecar_to_call(tmp_path: Path) -> None:
    async with routed(tmp_path, "llm-d") as (port, prefill, decode):
        await complete(port, {"prompt": "a"}, HEADERS)
        (_, headers, _), *_ = decode.requests
        assert headers["X-Prefiller-Host-Port"] == f"127.0.0.1:{prefill.port}"
        assert ATTACKER not in str(headers)
