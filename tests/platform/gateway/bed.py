"""A data plane on real sockets, with replicas written for the test, in one event loop as in the gateway's process.

def test_something() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        assert (await bed.ask("GET", "/iris/v2")).status == 200
    play(case)
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import uvloop
from tests.eventually import eventually_async
from tests.serving import Answer, rendered

from pilotlight.gateway.control_link import Unreachable, Wake
from pilotlight.gateway.proxy.data_plane import DataPlane, RouteKey
from pilotlight.gateway.proxy.responses import Admission, ErrorResponse
from pilotlight.gateway.routing_table import Backend, Replica, Route, Table
from pilotlight.wire.service_access import Refusal

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
LIMIT_S = 100.0
WAIT_S = 60.0  # a busy machine is slow
LIMIT = 1 << 22


@dataclass
class Seen:
    """A request as a replica got it."""

    line: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


Reply = Callable[[Seen, Reader, Writer], Awaitable[None]]


async def fine(seen: Seen, reader: Reader, writer: Writer) -> None:
    """Answers with the path that it was asked for."""
    await answer(writer, b'{"path": "%s"}' % seen.path.encode())


async def answer(writer: Writer, body: bytes, *headers: str, status: str = "200 OK") -> None:
    lines = "".join(f"{line}\r\n" for line in headers)
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body)
    await writer.drain()


@dataclass
class Origin:
    """A replica: reads requests, and whole bodies unless told not to, and lets `reply` answer."""

    reply: Reply = fine
    whole: bool = True
    seen: list[Seen] = field(default_factory=list)
    connections: list[Writer] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=LIMIT)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections.append(writer)
        try:
            while True:
                seen = await read_request(reader, self.whole)
                self.seen.append(seen)
                await self.reply(seen, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        """Closes the port and every connection."""
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()


async def read_request(reader: Reader, whole: bool = True) -> Seen:
    line, headers = await read_head(reader)
    return Seen(line, headers, await read_body(reader, headers) if whole else b"")


async def read_head(reader: Reader) -> tuple[str, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    names = [name.lower() for name, _, _ in pairs]
    assert len(set(names)) == len(names), f"a header is there twice: {names}"
    return first, {name.lower(): value.strip() for name, _, value in pairs}


async def read_body(reader: Reader, headers: Mapping[str, str], otherwise: int = 0) -> bytes:
    """`otherwise` is the length when no header says one."""
    if headers.get("transfer-encoding") != "chunked":
        length = int(headers.get("content-length", otherwise))
        return await (reader.readexactly(length) if length >= 0 else reader.read(-1))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return body


async def read_answer(reader: Reader, method: str = "GET") -> Answer:
    line, headers = await read_head(reader)
    status = int(line.split(" ")[1])
    bodiless = method == "HEAD" or status in {204, 304} or status < 200
    body = b"" if bodiless else await read_body(reader, headers, otherwise=-1)
    return Answer(status, headers, body)


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class AllowAll:
    def admit(
        self, route: Route, headers: Mapping[str, str], peer: str, client: str | Refusal | None = None
    ) -> ErrorResponse | None:
        return None

    def allows(self, headers: Mapping[str, str]) -> Callable[[Route], bool]:
        return lambda _: True

    def authenticate(self, route: Route, headers: Mapping[str, str]) -> str | Refusal:
        return ""


class Bed:
    def __init__(self, gate: Admission | None, clock: Callable[[], float] | None) -> None:
        self.wakes: list[Wake] = []
        self.unreachable: list[Unreachable] = []
        how: dict[str, Any] = {} if clock is None else {"clock": clock}
        self.plane = DataPlane(self.wakes.append, self.unreachable.append, gate or AllowAll(), **how)
        self._origins: list[Origin] = []
        self._servers: list[asyncio.Server] = []
        self._writers: list[Writer] = []
        self.port = 0

    async def listen(self, key: RouteKey | None = None) -> int:
        server = await asyncio.get_running_loop().create_server(self.plane.protocol_factory(key), "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def origin(self, reply: Reply = fine, whole: bool = True) -> Origin:
        origin = Origin(reply, whole)
        await origin.start()
        self._origins.append(origin)
        return origin

    def publish(self, *routes: Route) -> None:
        self.plane.publish(Table(self.plane.generation + 1, routes))

    async def connect(self, port: int = 0, limit: int = LIMIT) -> tuple[Reader, Writer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port, limit=limit)
        self._writers.append(writer)
        return reader, writer

    async def ask(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None, port: int = 0
    ) -> Answer:
        """One request on a connection of its own."""
        return await self.ask_raw(rendered(method, path, body, headers, "localhost"), method, port)

    async def ask_raw(self, raw: bytes, method: str = "GET", port: int = 0) -> Answer:
        reader, writer = await self.connect(port)
        writer.write(raw)
        answered = await read_answer(reader, method)
        writer.close()
        return answered

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        for server in self._servers:
            server.close()
        await self.plane.drain(0.0)
        for origin in self._origins:
            await origin.stop()
        for server in self._servers:
            await server.wait_closed()


def play(
    case: Callable[[Bed], Awaitable[None]],
    gate: Admission | None = None,
    clock: Callable[[], float] | None = None,
    limit_s: float = LIMIT_S,
) -> None:
    async def run() -> None:
        async with asyncio.timeout(limit_s):
            bed = Bed(gate, clock)
            bed.port = await bed.listen()
            try:
                await case(bed)
            finally:
                await bed.close()

    uvloop.run(run())


async def looked(bed: Bed) -> None:
    """All connections were looked at by the clock's present time."""
    for _ in range(2):  # the first may have begun before the time was set
        before = bed.plane._sweeper
        await eventually_async(lambda before=before: bed.plane._sweeper is not before, "a look at all connections")


def route(name: str, *backends: Backend, namespace: str = "default", **how: Any) -> Route:
    return Route(namespace, name, backends, **how)


def backend(revision: str, *origins: Origin | int, weight: int = 100, **how: Any) -> Backend:
    """Replicas may be given by their ports, too; the id is made of it."""
    ports = [origin if isinstance(origin, int) else origin.port for origin in origins]
    replicas = tuple(Replica(f"replica-{port}", port) for port in ports)
    return Backend(revision, revision.rpartition("-")[0], weight, replicas, **how)


async def serving(bed: Bed, reply: Reply = fine, whole: bool = True) -> Origin:
    """The one replica of a service `iris`; `whole`: it has read the body before it answers."""
    origin = await bed.origin(reply, whole)
    bed.publish(route("iris", backend("iris-1", origin)))
    return origin


def error_of(answered: Answer) -> str:
    document = json.loads(answered.body)
    assert document.keys() == {"error"}
    assert answered.headers["content-type"] == "application/json"
    assert answered.headers["x-request-id"]
    return str(document["error"])
