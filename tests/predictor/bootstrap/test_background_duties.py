"""What a server does beside its requests ends with it, at whatever moment that is."""

import asyncio
import socket
from pathlib import Path

import pytest

from pilotlight_predictor.bootstrap.application import Application
from pilotlight_predictor.config import parse
from pilotlight_predictor.frontends.http.messages import HttpResponse
from pilotlight_predictor.frontends.http.server import HttpServer
from pilotlight_predictor.server.server_state import Lifecycle, ServerState


def test_a_ready_server_takes_grpc_connections(tmp_path: Path) -> None:
    connected = []

    class Watched(Lifecycle):
        def move(self, state: ServerState, reason: str = "") -> None:
            if state is ServerState.READY:
                assert application.rpc is not None
                socket.create_connection(("127.0.0.1", application.rpc._port.port), 5).close()
                connected.append(state)
            super().move(state, reason)

    flags = [f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--host=127.0.0.1", "--grpc-port=0"]
    application = Application(parse(flags, {}), Watched(0.0, 0.0))
    asyncio.run(application._load(asyncio.sleep(0)))
    assert connected


@pytest.mark.parametrize("turns", range(8))
def test_a_server_that_ends_as_it_becomes_ready_leaves_no_duty_that_nobody_awaits(tmp_path: Path, turns: int) -> None:
    async def scene() -> None:
        flags = [f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--grpc-port=-1"]
        assembly = Application(parse(flags, {}), Lifecycle(0.0, 0.0))
        await assembly.open(HttpServer(lambda _: HttpResponse(503)), None)
        work = asyncio.create_task(assembly.work(asyncio.Event()))
        async with asyncio.timeout(60):
            while not assembly.server.readiness().ready:
                await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        await assembly.close()
        assert work.cancelled()

    asyncio.run(scene())
