"""A stand-in of `python -m sglang.launch_server` with `--disaggregation-mode`; docs/disaggregated.md has the sources.

Both halves need the same `bootstrap_room`; the decoder finds the prefill engine's bootstrap server by host and port.
A half alone waits; a request without a number is 400. A number that was used before is 500, where real engines crash.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.engines.engine import Body, Engine, EngineError, prompt_words, serve_forever

WAITING_S = float(os.environ.get("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "300"))


class SGLangEngine(Engine):
    def __init__(self, name: str, mode: str) -> None:
        super().__init__(name)
        self.mode, self.bootstrap_port = mode, 0
        self.used: set[int] = set()
        self.caches: dict[int, asyncio.Future[list[str]]] = {}
        self.fetched: dict[int, asyncio.Event] = {}

    async def generate(self, body: Body) -> tuple[list[str], Body]:
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
    async def serving(self, port: int = 0, bootstrap_port: int = 0) -> AsyncIterator["SGLangEngine"]:
        async with super().serving(port):
            if self.mode == "decode":
                yield self
                return
            server = await asyncio.start_server(self._bootstrap, "127.0.0.1", bootstrap_port or self.bootstrap_port)
            self.bootstrap_port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                server.close()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--disaggregation-mode", choices=("prefill", "decode"), required=True)
    parser.add_argument("--disaggregation-bootstrap-port", type=int, default=8998)
    options, _ = parser.parse_known_args()
    engine = SGLangEngine(options.disaggregation_mode, options.disaggregation_mode)
    engine.bootstrap_port = options.disaggregation_bootstrap_port
    asyncio.run(serve_forever(engine, options.port))


if __name__ == "__main__":
    main()
