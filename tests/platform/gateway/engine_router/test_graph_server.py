"""InferenceGraphs: the server that executes them, with real small HTTP services."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.eventually import eventually_async
from tests.http_reply import Reply
from tests.platform.gateway.engine_router.routers import router, until_ready
from tests.platform.gateway.engine_router.test_graph import Nodes, named, nodes_text
from tests.platform.gateway.linked import ask, in_loop

from pilotlight.gateway.engine_router import graph_server as server_module
from pilotlight.gateway.engine_router.graph import (
    Message,
    Step,
    read_graph,
)
from pilotlight.gateway.engine_router.graph_server import GraphServer
from pilotlight.gateway.engine_router.settings import RouterSettings
from pilotlight.gateway.proxy.responses import NO_ROUTE, render_error
from pilotlight.wire.unix_socket import socket_path


class Services:
    """A server of many services: `/NAMESPACE/NAME/…` answers with what it got, as the gateway of a machine would."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.cancelled: list[str] = []
        self.waiting = asyncio.Barrier(2)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        name = request.path.split("/")[2]
        if name == "stuck":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
        if name.startswith("pair"):
            await self.waiting.wait()  # passes only when both are called at once
        if name == "broken":
            return web.json_response({"error": "no such model"}, status=404)
        if name == "absent":
            return web.Response(status=NO_ROUTE.status, body=render_error(NO_ROUTE, "", True).partition(b"\r\n\r\n")[2])
        if name == "large":
            return web.Response(body=b" " * ((64 << 20) + 1))
        if name == "cycle":
            return web.json_response({"error": "came before"}, status=508)
        if name == "cookie":
            return web.json_response({}, headers={"Set-Cookie": "session=1", "X-Other": "x"})
        if name == "moved":
            return web.Response(status=307, headers={"Location": "/default/iris/"})
        body = await request.read()
        return web.json_response({"path": request.path, "body": json.loads(body)})


@asynccontextmanager
async def services() -> AsyncIterator[tuple[Services, str]]:
    made, app = Services(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def graph_server(nodes: Nodes, **settings: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the server."""
    server = GraphServer(RouterSettings("flowers", graph=read_graph(nodes_text(nodes)), **settings))
    (replica,) = await server.discover()
    connector = aiohttp.UnixConnector(str(socket_path(replica.host, replica.port)))
    async with aiohttp.ClientSession("http://graph", connector=connector) as client:
        try:
            yield client
        finally:
            await server.close()


async def post(client: aiohttp.ClientSession, body: Any, **headers: str) -> Reply:
    async with client.post("/any/path", json=body, headers=headers) as response:
        names = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status, names, await response.read())


@in_loop
async def test_services_of_a_machine_are_called_through_its_gateway() -> None:
    async with services() as (called, url):
        async with graph_server({"root": ("Sequence", named("iris"))}, namespace="demo", gateway_url=url) as client:
            reply = await post(client, {"instances": [1]}, **{"X-Request-Id": "r-1", "Authorization": "Bearer t"})
        assert reply.json() == {"path": "/demo/iris/v1/models/iris:predict", "body": {"instances": [1]}}
        (request,) = called.requests
        assert (request.method, request.headers["X-Request-Id"], request.headers["Authorization"]) == (
            "POST", "r-1", "Bearer t",
        )  # fmt: skip


@in_loop
async def test_a_url_is_called_as_it_is_written_and_gets_no_credentials() -> None:
    async with services() as (called, url):
        async with graph_server({"root": ("Sequence", [{"serviceUrl": f"{url}/a/b/c?d=e"}])}) as client:
            reply = await post(client, {"x": 1}, Authorization="Bearer t", Cookie="s=1", traceparent="00-1-2-01")
        assert reply.json() == {"path": "/a/b/c", "body": {"x": 1}}
        (request,) = called.requests
        assert (request.query_string, request.headers["traceparent"]) == ("d=e", "00-1-2-01")
        assert not {"Authorization", "Cookie"} & request.headers.keys()


@in_loop
async def test_a_cookie_of_a_step_reaches_neither_its_client_nor_other_requests() -> None:
    async with services() as (called, url):
        named_host = url.replace("127.0.0.1", "localhost")  # clients keep no cookies of addresses
        async with graph_server({"root": ("Sequence", [{"serviceUrl": f"{named_host}/a/cookie"}])}) as client:
            replies = [await post(client, {}), await post(client, {})]
        assert [reply.status for reply in replies] == [200, 200]
        assert not any({"set-cookie", "x-other"} & reply.headers.keys() for reply in replies)
        assert not any("Cookie" in request.headers for request in called.requests)


@in_loop
async def test_a_cycle_behind_a_step_fails_the_request_also_in_an_ensemble() -> None:
    async with services() as (called, url):
        nodes: Nodes = {"root": ("Ensemble", named("cycle"))}
        async with graph_server(nodes, gateway_url=url) as client:
            reply = await post(client, {"instances": [1]})
            assert (reply.status, "cycle" in reply.json()["cause"]) == (508, True)
            passed = called.requests[0].headers["X-Pilotlight-Graphs"]
            again = await post(client, {"instances": [1]}, **{"X-Pilotlight-Graphs": passed})
        assert (again.status, len(called.requests)) == (508, 1)


@pytest.mark.parametrize(
    "head", ["101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade", "999 Odd\r\nContent-Length: 0",
             "200 OK\r\nContent-Length: 0\r\nContent-Type: a\x01b"],
)  # fmt: skip
@in_loop
async def test_a_head_that_cannot_be_sent_on_is_an_error_of_its_step(head: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {head}\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with graph_server({"root": ("Sequence", [{"serviceUrl": url, "name": "odd"}])}) as client:
            reply = await post(client, {})
        assert (reply.status, "step odd" in reply.json()["cause"]) == (502, True)


@in_loop
async def test_the_path_of_a_url_is_not_told_to_clients() -> None:
    async with graph_server({"root": ("Sequence", [{"serviceUrl": "http://127.0.0.1:9/secret?key=1"}])}) as client:
        cause = (await post(client, {})).json()["cause"]
    assert "127.0.0.1" in cause
    assert "secret" not in cause


@in_loop
async def test_what_requests_and_answers_hold_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_HELD", 5000)
    body = {"instances": ["x" * 2000]}
    async with services() as (_, url):
        async with graph_server({"root": ("Ensemble", named("a", "b"))}, gateway_url=url) as client:
            reply = await post(client, body)
            assert (reply.status, "hold more" in reply.json()["cause"]) == (503, True)
            small = [(await post(client, {"instances": [1]})).status for _ in range(3)]
        assert small == [200] * 3


@in_loop
async def test_the_steps_of_an_ensemble_run_at_once() -> None:
    async with services() as (_, url):
        nodes: Nodes = {"root": ("Ensemble", named("pair-1", "pair-2"))}
        async with graph_server(nodes, gateway_url=url, timeout_s=30) as client:
            reply = await post(client, {"instances": [1]})
        assert (reply.status, set(reply.json())) == (200, {"pair-1", "pair-2"})


@in_loop
async def test_the_answer_of_a_failing_hard_step_is_the_answer_with_its_status() -> None:
    async with services() as (_, url):
        nodes: Nodes = {"root": ("Sequence", named("broken", "iris", dependency="Hard"))}
        async with graph_server(nodes, gateway_url=url) as client:
            reply = await post(client, {"instances": [1]})
        assert (reply.status, reply.json()) == (404, {"error": "no such model"})


@pytest.mark.parametrize(
    ("name", "status", "cause"),
    [
        ("large", 502, "more than 64 MiB"),
        ("stuck", 504, "more than 0.2 s"),
        ("moved", 307, ""),
        ("absent", 502, "no service default/absent is deployed"),
    ],
)
@in_loop
async def test_a_step_that_does_not_answer_as_a_model_fails_the_request(name: str, status: int, cause: str) -> None:
    nodes, limit_s = {"root": ("Sequence", named(name))}, 0.2 if name == "stuck" else 60.0
    async with services() as (_, url):
        async with graph_server(nodes, gateway_url=url, step_timeout_s=limit_s) as client:
            reply = await post(client, {"instances": [1]})
        assert reply.status == status
        assert not cause or (name in reply.json()["cause"] and cause in reply.json()["cause"])


@in_loop
async def test_a_step_without_a_server_is_unreachable_and_one_without_a_host_is_unknown() -> None:
    nodes: Nodes = {"root": ("Sequence", [{"serviceUrl": "http://127.0.0.1:9/x"}])}
    async with graph_server(nodes) as client:
        reply = await post(client, {})
        assert (reply.status, "cannot be reached" in reply.json()["cause"]) == (502, True)
    async with graph_server({"root": ("Sequence", [{"serviceUrl": "http://no-host.invalid/x"}])}) as client:
        reply = await post(client, {})
        assert (reply.status, "host is unknown" in reply.json()["cause"]) == (502, True)


@in_loop
async def test_the_deadline_is_for_all_steps_and_cancels_them() -> None:
    async with services() as (called, url):
        nodes: Nodes = {"root": ("Ensemble", named("iris", "stuck"))}
        async with graph_server(nodes, gateway_url=url, timeout_s=0.3) as client:
            reply = await post(client, {"instances": [1]})
            assert (reply.status, "0.3 s" in reply.json()["cause"]) == (504, True)
            await eventually_async(lambda: called.cancelled, "the call to be cancelled")


@in_loop
async def test_a_client_that_leaves_cancels_the_steps() -> None:
    async with services() as (called, url):
        nodes: Nodes = {"root": ("Sequence", named("stuck"))}
        async with graph_server(nodes, gateway_url=url) as client:
            request = asyncio.create_task(post(client, {"instances": [1]}))
            await eventually_async(lambda: called.requests, "the call")
            request.cancel()
            await eventually_async(lambda: called.cancelled, "the call to be cancelled")


@in_loop
async def test_a_cluster_is_asked_for_the_service_then_for_its_entry_workloads() -> None:
    server = GraphServer(RouterSettings("flowers", namespace="demo", graph={}))
    urls = server._urls(Step(service_name="iris"), Message(b'{"instances": [1]}'))
    await server.close()
    assert urls == [
        f"http://{host}.demo.svc.cluster.local/v1/models/iris:predict"
        for host in ("iris", "iris-router", "iris-transformer", "iris-engine", "iris-predictor")
    ]


@in_loop
async def test_the_router_process_executes_a_graph_and_counts_its_requests(tmp_path: Path) -> None:
    async with services() as (_, url):
        graph = nodes_text({"root": ("Switch", [{"serviceUrl": f"{url}/a/b", "condition": "x"}])})
        async with router(tmp_path, "", GRAPH=graph) as port:
            await until_ready(port)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                reply = await post(client, {"x": 1})
                refused = await post(client, {"y": 1})
            assert (reply.status, reply.json()["body"]) == (200, {"x": 1})
            assert (refused.status, set(refused.json())) == (404, {"error", "cause"})
            assert (await ask(port, "/")).status == 405
            page = (await ask(port, "/metrics")).body.decode()
            assert 'revision="graph"' in page
