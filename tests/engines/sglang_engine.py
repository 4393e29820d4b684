"""A stand-in of `python -m sglang.launch_server`; docs/reference/openai.md has the sources.

With `--disaggregation-mode` both halves need the same `bootstrap_room`; the decoder finds the bootstrap server of the
prefill engine by host and port. A half alone waits; a request without a number is 400. A number that was used before is
500, where real engines crash. With `--nnodes` the first node answers once all have joined it; all end when one does.

With `--enable-lora` a request selects an adapter by `model: BASE:ADAPTER`; what stands before the colon is not checked.
An engine that starts without adapters must know the rank and the modules of those to come.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from tests.engines.engine import Body, Engine, EngineError, end_at_sigterm, prompt_words, serve_forever

WAITING_S = float(os.environ.get("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "300"))


class SGLangEngine(Engine):
    """`mode` is prefill, decode, or null: one engine does both."""

    METRICS = (
        "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:time_to_first_token_seconds",
        "sglang:e2e_request_latency_seconds",
    )  # fmt: skip
    UNKNOWN = 400

    def __init__(self, name: str, mode: str, host: str = "127.0.0.1", served: str = "") -> None:
        super().__init__(name, host, served)
        self.mode, self.bootstrap_port = mode, 0
        self.used: set[int] = set()
        self.caches: dict[int, asyncio.Future[list[str]]] = {}
        self.fetched: dict[int, asyncio.Event] = {}
        self.max_rank: int | None = None  # of adapters; None: that of those it starts with

    def knows(self, model: str) -> bool:
        _, colon, adapter = model.removeprefix(self.served).partition(":")
        return not colon or adapter in self.adapters

    async def _load_adapter(self, request: web.Request) -> web.Response:
        self.credentials.add(request.headers.get("Authorization", ""))
        body = await request.json()
        return self._updated(self._load(body["lora_name"], body["lora_path"]))

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        return self._updated("" if self.adapters.pop(name, None) else f"LoRA with name {name} does not exist")

    def _load(self, name: str, path: str) -> str:
        """Load an adapter; return the error."""
        if name in self.adapters:
            return f"Failed to load LoRA adapter {name} because it is already loaded"
        try:
            config = json.loads((Path(path) / "adapter_config.json").read_text())
        except OSError as error:
            return f"Failed to load LoRA adapter {name}: {error}"
        if config["r"] > (self.max_rank or config["r"]) or "modules_to_save" in config:
            return f"LoRA adapter {name} with rank {config['r']} is incompatible with the current LoRA memory pool"
        self.adapters[name] = path
        return ""

    def _updated(self, error: str) -> web.Response:
        fields = {"success": not error, "error_message": error, "loaded_adapters": self.adapters}
        return web.json_response(fields, status=400 if error else 200)

    async def generate(self, body: Body) -> tuple[list[str], Body]:
        if self.mode == "null":
            return prompt_words(body), {}
        number = body.get("bootstrap_room")
        if number is None:
            raise EngineError(400, "Invalid request: Disaggregated request received without boostrap room id.")
        if number in self.used:
            raise EngineError(500, f"KeyError: {number}")
        self.used.add(number)
        try:
            async with asyncio.timeout(WAITING_S):
                if self.mode == "prefill":
                    self._cache(number).set_result(prompt_words(body))
                    await self.fetched.setdefault(number, asyncio.Event()).wait()
                    return ["first"], {}
                return await self._fetch(str(body["bootstrap_host"]), int(body["bootstrap_port"]), number), {}
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineError(500, f"KVTransferError(bootstrap_room={number}): {error}") from None

    def _cache(self, number: int) -> asyncio.Future[list[str]]:
        return self.caches.setdefault(number, asyncio.get_running_loop().create_future())

    async def _fetch(self, host: str, port: int, number: int) -> list[str]:
        reader, writer = await asyncio.open_connection(host.strip("[]"), port)
        writer.write(f"{number}\n".encode())
        try:
            return list(json.loads(await reader.readline()))
        finally:
            writer.close()

    async def _bootstrap(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            number = int(await reader.readline())
            cache = await self._cache(number)
            writer.write(json.dumps(cache).encode() + b"\n")
            await writer.drain()
            self.fetched[number].set()
        finally:
            writer.close()

    @asynccontextmanager
    async def serving(self, port: int | str = 0, bootstrap_port: int = 0) -> AsyncIterator["SGLangEngine"]:
        async with super().serving(port):
            if self.mode != "prefill":
                yield self
                return
            server = await asyncio.start_server(self._bootstrap, self.host, bootstrap_port or self.bootstrap_port)
            self.bootstrap_port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                server.close()


async def join(address: str, rank: int, nodes: int) -> None:
    """Wait until every node of the group has connected to the first one; end when one of them does."""
    host, _, port = address.rpartition(":")
    if rank:
        reader, writer = await _connection(host, int(port))
        writer.write(f"{rank}\n".encode())
        await reader.readline()
        print(f"node {rank} of {nodes} has joined {address}", flush=True)
        await reader.read()
        sys.exit(f"node {rank}: the connection to {address} is lost")
    ranks: set[int] = set()
    complete = asyncio.Event()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ranks.add(other := int(await reader.readline()))
        if ranks == set(range(1, nodes)):
            complete.set()
        await complete.wait()
        writer.write(b"complete\n")
        await reader.read()
        print(f"node {other} of {nodes} is lost", flush=True)
        os._exit(1)

    await asyncio.start_server(joined, "0.0.0.0", int(port))
    await complete.wait()
    print(f"{nodes} nodes have joined", flush=True)


async def _connection(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.2)


async def serve(options: argparse.Namespace) -> None:
    if options.nnodes > 1:
        await join(options.dist_init_addr, options.node_rank, options.nnodes)
    mode = options.disaggregation_mode
    engine = SGLangEngine(mode, mode, options.host, options.served_model_name)
    engine.slots = asyncio.Semaphore(options.max_running_requests)
    if options.enable_memory_saver and options.enable_weights_cpu_backup:
        engine.sleep_paths = ("/release_memory_occupation", "/resume_memory_occupation")
    if options.enable_lora or options.lora_paths:
        engine.load_paths = ("/load_lora_adapter", "/unload_lora_adapter")
        engine.max_rank = options.max_lora_rank
        for name, path in (each.split("=", 1) for each in options.lora_paths):
            if error := engine._load(name, path):
                sys.exit(error)
    engine.bootstrap_port = options.disaggregation_bootstrap_port
    await serve_forever(engine, options.port)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--model-path", type=Path)
    parser.add_argument("--served-model-name", default="")
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--max-running-requests", type=int, default=256)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--dist-init-addr")
    parser.add_argument("--disaggregation-mode", choices=("null", "prefill", "decode"), default="null")
    parser.add_argument("--disaggregation-bootstrap-port", type=int, default=8998)
    parser.add_argument("--enable-memory-saver", action="store_true")
    parser.add_argument("--enable-weights-cpu-backup", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--lora-paths", nargs="*", default=())
    parser.add_argument("--max-loras-per-batch", type=int, default=8)
    parser.add_argument("--max-lora-rank", type=int)
    parser.add_argument("--lora-target-modules", nargs="*")
    options, _ = parser.parse_known_args()
    if options.enable_lora and not options.lora_paths and not (options.max_lora_rank and options.lora_target_modules):
        parser.error("without --lora-paths, --max-lora-rank and --lora-target-modules are needed")
    if options.model_path and not options.model_path.is_dir():
        parser.error(f"no model in {options.model_path}")
    if options.tp_size % options.nnodes:
        parser.error("tp_size must be divisible by number of nodes")
    end_at_sigterm()
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
