"""What a replica tells of its start is asked for again where nobody answered in time, and no more once it is known."""

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.eventually import eventually_async

from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.supervisor.probes import run_probes
from pilotlight.targets.local.supervisor.replica_record import Checks, Replica
from pilotlight.wire import unix_socket
from pilotlight.wire.http_client import accepts_connections

PHASES = {"state": "ready", "phases": {"boot": 0.1, "total": 0.4}}


class Told:
    """A replica that is ready, whose first answers about its start are `statuses`; and who is told of it."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.looks = self.probes = 0
        self.learned_of: list[Mapping[str, Any]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # a question may be broken off at the end
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        if path == b"/status":
            self.looks += 1
            status, body = (self.statuses.pop(0), b"") if self.statuses else (200, json.dumps(PHASES).encode())
        else:
            self.probes += 1
            status, body = 200, b"{}"
        writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body))

    def on_status(self, status: Mapping[str, Any]) -> None:
        self.learned_of.append(status)

    def on_ready(self) -> None: ...
    def on_unready(self, reason: str) -> None: ...
    def on_start_failed(self, reason: str) -> None: ...
    def on_liveness_failed(self, reason: str) -> None: ...


def test_a_start_that_could_not_be_told_at_once_is_asked_for_again_and_then_no_more() -> None:
    async def play() -> None:
        told = Told(503, 503)
        async with await asyncio.start_server(told.answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            checks = Checks(Probe("/v2/health/ready", port, period_s=0.02))
            replica = Replica("iris-1", "default", "iris", "iris-predictor", "iris-predictor-1", checks)
            task = asyncio.create_task(run_probes(replica, told))
            await eventually_async(lambda: told.learned_of == [PHASES])
            probes = told.probes
            await eventually_async(lambda: told.probes > probes + 5)
            task.cancel()
        assert told.looks == 3

    asyncio.run(play())


def test_a_server_is_ready_when_it_takes_connections_and_no_byte_is_sent_to_it() -> None:
    received = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            received.append(await reader.read())

    async def play() -> None:
        told, ready = Told(), asyncio.Event()
        told.on_ready = ready.set  # type: ignore[method-assign]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        checks = Checks(Probe("", port, kind="tcp"), predictor=False)
        replica = Replica("iris-1", "default", "iris", "iris-predictor", "iris-predictor-1", checks)
        task = asyncio.create_task(run_probes(replica, told))
        assert not await accepts_connections(port, 1.0)
        assert not ready.is_set()
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            await asyncio.wait_for(ready.wait(), 30.0)
            await eventually_async(lambda: received == [b""])
            task.cancel()

    asyncio.run(play())


def test_a_proxy_that_listens_before_its_server_does_is_not_ready() -> None:
    async def play() -> None:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            assert not await accepts_connections(server.sockets[0].getsockname()[1], 1.0)

    asyncio.run(play())


def test_a_socket_of_a_replica_takes_connections(tmp_path: Path) -> None:
    with unix_socket.listen(tmp_path / "8080", 1):
        assert asyncio.run(accepts_connections(8080, 1.0, host=f"unix:{tmp_path}"))
    assert not asyncio.run(accepts_connections(8081, 1.0, host=f"unix:{tmp_path}"))
