"""Stand-ins of LLM engines: real servers of the published protocols, whose model repeats the words of its prompt.

The KV cache of a prompt is its list of words. Who has it generates; who has it not must compute it, or fetch it.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.cuda.stand_in import SECRET, GpuMemory, from_environment

from pilotlight.gateway.routing_table import Replica

Body = dict[str, Any]
LONGEST_PROMPT = 1000  # characters
SECONDS = float(os.environ.get("ENGINE_SECONDS", "0"))


class EngineError(Exception):
    """An answer in the form of OpenAI's errors, which both engines have."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """`requests` are the bodies that it has got, `headers` theirs; `aborted` those whose client has gone.

    `served` is the name of the model, by which requests must ask for it; empty: any. It runs `slots` requests at a
    time, for `ENGINE_SECONDS` each; others wait. `METRICS` are the names of these numbers on its /metrics.
    """

    METRICS = ("running", "waiting", "time_to_first_token_seconds", "e2e_request_latency_seconds")
    UNKNOWN = 404  # status for a model that it has not

    def __init__(self, name: str, host: str = "127.0.0.1", served: str = "") -> None:
        self.name, self.host, self.served, self.port, self.busy = name, host, served, 0, False
        self.broken = bool(os.environ.get("ENGINE_BROKEN"))
        self.requests: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.aborted = 0
        self.answered = 0
        self.open = asyncio.Event()  # while it is not set, requests wait
        self.open.set()
        self.slots, self.arrived, self.running = asyncio.Semaphore(1 << 16), 0, 0
        self.adapters: dict[str, str] = {}  # path by name
        self.max_rank = 1 << 16  # of an adapter
        self.credentials: set[str] = set()  # that came with calls of that API
        self.load_paths: tuple[str, str] | None = None  # of the API that loads and unloads adapters
        self.sleep_paths: tuple[str, ...] = ()  # of the API that frees its GPU memory: sleep, wake, state, reload
        self.memory: GpuMemory | None = None
        self.asleep, self.discarded = False, False
        self._first_tokens: list[float] = []
        self._latencies: list[float] = []
        self._transports: set[asyncio.Transport | None] = set()

    @property
    def config(self) -> Replica:
        return Replica(self.name, self.port)

    async def generate(self, body: Body) -> tuple[list[str], Body]:
        """Return the words of the answer, and further fields of it. Raise EngineError."""
        raise NotImplementedError

    @asynccontextmanager
    async def serving(self, port: int | str = 0) -> AsyncIterator["Engine"]:
        """Serve on a port, or on a unix socket of this path."""
        app = web.Application(client_max_size=1 << 27)
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            app.router.add_post(path, self._complete)
        for path, handler in zip(self.load_paths or (), (self._load_adapter, self._unload_adapter), strict=False):
            app.router.add_post(path, handler)
        for path, route in zip(self.sleep_paths, (self._sleep, self._wake, self._state, self._reload), strict=False):
            app.router.add_route("GET" if route == self._state else "POST", path, route)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        if isinstance(port, str):
            await web.UnixSite(runner, port).start()
        else:
            await web.TCPSite(runner, self.host, port).start()
            self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _compute(self) -> bool:
        """Read the weights; return whether they are what was loaded. Waits while the driver has locked the process."""
        if self.asleep:
            raise EngineError(500, "the engine sleeps")
        read = await asyncio.to_thread(self.memory.read) if self.memory is not None else SECRET
        return read == SECRET and not self.discarded

    def hang_up(self) -> None:
        """As an engine that dies."""
        for transport in self._transports:
            if transport is not None:
                transport.abort()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        base = self.served or self.name
        adapters = [{"id": name, "root": path, "parent": base} for name, path in self.adapters.items()]
        return web.json_response({"object": "list", "data": [{"id": base}, *adapters]})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        self.credentials.add(request.headers.get("Authorization", ""))
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return web.json_response({"message": "it has already been loaded"}, status=400)
        if not os.path.exists(os.path.join(body["lora_path"], "adapter_config.json")):
            return web.json_response({"message": f"No adapter found for {body['lora_path']}"}, status=404)
        config = json.loads((Path(body["lora_path"]) / "adapter_config.json").read_text())
        if config["r"] > self.max_rank:
            message = f"LoRA rank {config['r']} is greater than max_lora_rank {self.max_rank}."
            return web.json_response({"message": message}, status=400)
        if "modules_to_save" in config:
            return web.json_response({"message": "modules_to_save is not supported"}, status=400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        found = self.adapters.pop((await request.json())["lora_name"], None)
        return web.Response(status=200 if found else 404)

    async def _sleep(self, request: web.Request) -> web.Response:
        if self.memory is not None:
            self.memory.free()
        self.asleep, self.discarded = True, request.query.get("level") == "2"
        return web.Response()

    async def _wake(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", ["weights", "kv_cache"])
        if self.memory is not None and "weights" in tags:
            await asyncio.to_thread(self.memory.allocate)
        self.asleep = "kv_cache" not in tags
        return web.Response()

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.asleep})

    async def _reload(self, request: web.Request) -> web.Response:
        self.discarded = (await request.json())["method"] != "reload_weights"
        return web.json_response({"results": [None]})

    def knows(self, model: str) -> bool:
        return model in (self.served, *self.adapters)

    async def _metrics(self, request: web.Request) -> web.Response:
        running, waiting, first, whole = self.METRICS
        labels = f'model_name="{self.served}"'
        waits = self.arrived - self.running
        numbers = {running: self.running, waiting: waits}
        lines = [line for name, n in numbers.items() for line in (f"# TYPE {name} gauge", f"{name}{{{labels}}} {n}")]
        for name, timed in ((first, self._first_tokens), (whole, self._latencies)):
            lines.append(f"# TYPE {name} histogram")
            for edge in (0.1, 0.5, 2.0, float("inf")):
                count = sum(seconds <= edge for seconds in timed)
                lines.append(f'{name}_bucket{{{labels},le="{edge if edge < 10 else "+Inf"}"}} {count}')
        return web.Response(text="\n".join(lines) + "\n")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self._transports.add(request.transport)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.broken:
            return web.Response(status=500, text="Internal Server Error")
        try:
            if self.busy:
                raise EngineError(503, "The server is overloaded.")
            if self.served and not self.knows(str(body.get("model"))):
                raise EngineError(self.UNKNOWN, f"The model `{body.get('model')}` does not exist.")
            if "broken" in str(self.adapters.get(str(body.get("model")))):
                raise EngineError(500, "the adapter produced NaN")
            if len(str(body.get("prompt") or body.get("messages") or body.get("text"))) > LONGEST_PROMPT:
                raise EngineError(400, "The input is longer than the model's context length.")
            began, self.arrived = time.monotonic(), self.arrived + 1
            try:
                await self.open.wait()
                async with self.slots:
                    self._first_tokens.append(time.monotonic() - began)
                    self.running += 1
                    try:
                        await asyncio.sleep(SECONDS)
                        intact = await self._compute()
                        words, more = await self.generate(body)
                        words = words if intact else words[::-1]
                    finally:
                        self.running -= 1
            finally:
                self.arrived -= 1
        except EngineError as error:
            problem = {"object": "error", "message": str(error), "type": "BadRequestError", "code": error.status}
            return web.json_response(problem, status=error.status)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        self.answered += 1
        self._latencies.append(time.monotonic() - began)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(words)
        if not body.get("stream"):
            text = " ".join(words[:limit])
            choice = {"text": text, "message": {"role": "assistant", "content": text}}
            return web.json_response({"choices": [choice], "engine": self.name, "model": body.get("model"), **more})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in words[:limit]:
            await response.write(f"data: {json.dumps({'choices': [{'text': word}]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def prompt_words(body: Body) -> list[str]:
    prompt = body.get("prompt") or body.get("text") or body["messages"][-1]["content"]
    return str(prompt).split()


def end_at_sigterm() -> None:
    """As the first process of a container too, which no signal ends by itself."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


async def serve_forever(engine: Engine, port: int | str) -> None:
    engine.memory = from_environment()
    async with engine.serving(port):
        print(json.dumps({"argv": sys.argv, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}), flush=True)
        await asyncio.Event().wait()
