"""Stand-ins of `vllm serve` (NixlConnector) and of llm-d's routing sidecar; docs/reference/openai.md has the sources.

A prefill request holds its blocks until a decoder has read them by the side channel, once. Without parameters an engine
computes the prompt itself, which `prefills` counts: that is how a real decoder fails, by being slow.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import aiohttp
from aiohttp import web
from tests.engines.engine import Body, Engine, EngineError, end_at_sigterm, prompt_words, serve_forever

SIDE_CHANNEL_HOST = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")


class VllmEngine(Engine):
    METRICS = (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds",
    )  # fmt: skip

    def __init__(self, name: str, host: str = "127.0.0.1", served: str = "") -> None:
        super().__init__(name, host, served)
        self.id, self.side_channel_port = secrets.token_hex(4), 0
        self.blocks: dict[int, list[str]] = {}
        self.prefills = 0
        self._numbers = count()

    async def generate(self, body: Body) -> tuple[list[str], Body]:
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_prefill"):
            return await self._read(params), {}
        self.prefills += 1
        if not params.get("do_remote_decode"):
            return prompt_words(body), {}
        if body.get("stream") or body.get("max_tokens") != 1:
            raise EngineError(400, "a prefill request generates one token, and is no stream")
        block = next(self._numbers)
        self.blocks[block] = prompt_words(body)
        there = {"remote_engine_id": self.id, "remote_block_ids": [block], "remote_host": SIDE_CHANNEL_HOST}
        params = {"do_remote_prefill": True, "do_remote_decode": False, **there, "remote_port": self.side_channel_port}
        return ["first"], {"kv_transfer_params": params}

    async def _read(self, params: Body) -> list[str]:
        reader, writer = await asyncio.open_connection(params["remote_host"], params["remote_port"])
        writer.write(json.dumps([params["remote_engine_id"], *params["remote_block_ids"]]).encode() + b"\n")
        words = json.loads(await reader.readline())
        writer.close()
        if words is None:
            raise EngineError(500, "the remote blocks are not there")
        return list(words)

    async def _side_channel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine, block = json.loads(await reader.readline())
        words = self.blocks.pop(block, None) if engine == self.id else None
        writer.write(json.dumps(words).encode() + b"\n")
        writer.close()

    @asynccontextmanager
    async def serving(self, port: int | str = 0) -> AsyncIterator["VllmEngine"]:
        server = await asyncio.start_server(self._side_channel, self.host, 0)
        self.side_channel_port = server.sockets[0].getsockname()[1]
        try:
            async with super().serving(port):
                yield self
        finally:
            server.close()


class RoutingSidecar(Engine):
    """In the decoder's pod: calls the prefill engine that the header names, then the decoder."""

    def __init__(self, decoder: VllmEngine) -> None:
        super().__init__("sidecar")
        self._decoder = decoder

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body, prefiller = await request.json(), request.headers.get("x-prefiller-host-port", "")
        async with aiohttp.ClientSession() as session:
            if prefiller:
                sent = {**body, "kv_transfer_params": {"do_remote_decode": True}, "stream": False, "max_tokens": 1}
                async with session.post(f"http://{prefiller}{request.path}", json=sent) as answer:
                    body["kv_transfer_params"] = (await answer.json())["kv_transfer_params"]
            async with session.post(f"http://127.0.0.1:{self._decoder.port}{request.path}", json=body) as answer:
                return web.Response(body=await answer.read(), status=answer.status)


def main() -> None:
    """The program `vllm`, or its module api_server, which takes the model as an option."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    if sys.argv[0].endswith("api_server.py"):
        parser.add_argument("--model", type=Path, required=True)
    else:
        parser.add_argument("verb", choices=("serve",))
        parser.add_argument("model", type=Path)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--uds", default="")
    parser.add_argument("--served-model-name", default="")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int, default=16, choices=(8, 16, 32, 64, 128, 256, 320, 512))
    parser.add_argument("--lora-modules", nargs="+", default=())
    parser.add_argument("--enable-sleep-mode", action="store_true")
    options, _ = parser.parse_known_args()
    if not options.model.is_dir():
        parser.error(f"no model in {options.model}")
    engine = VllmEngine("vllm", options.host, options.served_model_name or str(options.model))
    engine.slots = asyncio.Semaphore(options.max_num_seqs)
    engine.max_rank = options.max_lora_rank
    engine.adapters = dict(each.split("=", 1) for each in options.lora_modules)
    if options.enable_lora and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        engine.load_paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
    if options.enable_sleep_mode and os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
        engine.sleep_paths = ("/sleep", "/wake_up", "/is_sleeping", "/collective_rpc")
    end_at_sigterm()
    asyncio.run(serve_forever(engine, options.uds or options.port))


if __name__ == "__main__":
    main()
