"""A real gateway process with a link to it, small replicas of HTTP, and a client that sends exactly what it is told."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from tests.eventually import eventually_async
from tests.http_reply import Reply

from pilotlight.gateway.control_link import GatewayMessage, Report
from pilotlight.gateway.routing_table import Backend, Replica, Route, Table
from pilotlight.targets.local.gateway.gateway_link import GatewayLink
from pilotlight.targets.local.home_directory import Home

DEADLINE_S = 60.0  # a busy machine starts processes slowly


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test as a function that pytest can call."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@dataclass
class Linked:
    """`words` are all that the gateway said."""

    link: GatewayLink
    words: list[GatewayMessage]
    home: Home
    generation: int = 0

    @property
    def port(self) -> int:
        return int(self.link.addresses[0].rpartition(":")[2].partition("/")[0])

    async def publish(self, *routes: Route) -> Any:
        self.generation += 1
        return await self.link.publish(Table(self.generation, routes))

    async def counted(self, requests: int) -> None:
        """Until so many requests were reported. One that waits for long is in an earlier report too, uncounted."""

        def told() -> int:
            reports = (word for word in self.words if isinstance(word, Report))
            return sum(backend.requests for report in reports for backend in report.backends)

        await eventually_async(lambda: told() >= requests, "the reports")
        assert told() == requests

    async def hears(self, kind: type, after: int = 0) -> Any:
        return await eventually_async(
            lambda: next((word for word in self.words[after:] if isinstance(word, kind)), None), str(kind)
        )


def new_link(folder: Path, command: Sequence[str] | None = None) -> Linked:
    words: list[GatewayMessage] = []
    home = Home(folder).create()
    return Linked(GatewayLink(home, words.append, command), words, home)


@asynccontextmanager
async def linked(
    folder: Path, listen: Sequence[str] = ("127.0.0.1:0/http",), command: Sequence[str] | None = None
) -> AsyncIterator[Linked]:
    """Ends its gateway, whichever that is by then."""
    made = new_link(folder, command)
    await made.link.start(listen)
    try:
        yield made
    finally:
        await made.link.close(stop_gateway=True, drain_s=1.0)
        with suppress(ProcessLookupError):
            os.kill(made.link.pid, signal.SIGKILL)


@dataclass
class SmallReplica:
    """Answers with what it was asked; holds its answers back while `open` is not set."""

    name: str
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def config(self) -> Replica:
        return Replica(self.name, self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            await self._answers(reader, writer)
        finally:  # also where the loop ends first
            writer.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                asked = {"line": head[0], "headers": headers, "body": body.decode(), "replica": self.name}
                self.asked.append(asked)
                await self.open.wait()
                answer = json.dumps(asked).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)


@asynccontextmanager
async def replica(name: str = "r1", *, ready: bool = True) -> AsyncIterator[SmallReplica]:
    made = SmallReplica(name)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    if ready:
        made.open.set()
    try:
        yield made
    finally:
        made.open.set()
        server.close()
        for writer in made.connections:
            writer.transport.abort()


def route(*replicas: Replica, name: str = "iris", **more: Any) -> Route:
    backend = Backend("iris-1", "iris-predictor", 100, replicas, tags=("canary",))
    return Route("default", name, (backend,), **more)


async def ask(
    port: int, path: str, headers: Mapping[str, str] | None = None, host: str = "127.0.0.1", body: bytes = b""
) -> Reply:
    """On a connection of its own; with a body as a POST."""
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(host, port)
        told = {"Host": "localhost", **(headers or {}), **({"Content-Length": str(len(body))} if body else {})}
        lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in told.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        try:
            return await read_reply(reader)
        finally:
            writer.close()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Reply(int(head[0].split()[1]), headers, body)
