"""The router component: strategies as pure choices, settings, and a real router process before small engines."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.http_reply import Reply
from tests.platform.gateway.engine_router.routers import ENGINE, announce, ready, router, until_ready
from tests.platform.gateway.linked import DEADLINE_S, SmallReplica, ask, in_loop, read_reply, replica

from pilotlight.errors import UsageError
from pilotlight.gateway.engine_router.endpoint_discovery import DnsEndpoints, EndpointFile, is_healthy
from pilotlight.gateway.engine_router.load_balancer import EndpointPicker
from pilotlight.gateway.engine_router.router_process import EndpointPool, Router
from pilotlight.gateway.engine_router.settings import read as read_settings
from pilotlight.gateway.routing_table import Replica


def test_turns_are_taken_by_everybody_whatever_they_carry() -> None:
    choice = EndpointPicker("round_robin")
    assert sorted(choice.pick({"a": 9, "b": 0, "c": 5}) for _ in range(3)) == ["a", "b", "c"]


def test_the_least_loaded_is_chosen_and_equals_take_turns() -> None:
    choice = EndpointPicker("least_loaded")
    assert choice.pick({"a": 2, "b": 1, "c": 2}) == "b"
    assert sorted(choice.pick({"a": 1, "b": 0, "c": 0}) for _ in range(4)) == ["b", "b", "c", "c"]


def test_without_a_body_the_least_loaded_is_chosen() -> None:
    assert EndpointPicker("prefix_aware").pick({"a": 3, "b": 0}) == "b"


@pytest.mark.parametrize(
    ("environ", "message"),
    [({}, "PILOTLIGHT_ROUTER_ENGINE is not set, must name"),
     (ENGINE | {"PILOTLIGHT_ROUTER_STRATEGY": "guess"}, "STRATEGY = guess, must be one of round_robin"),
     (ENGINE | {"PILOTLIGHT_ROUTER_STRATEGY": "prefill_decode"}, "PILOTLIGHT_ROUTER_DECODER is not set"),
     (ENGINE | {"INFERENCE_HTTP_PORT": "http"}, "INFERENCE_HTTP_PORT = http, must be a number from 0 to 65535"),
     (ENGINE | {"PILOTLIGHT_ROUTER_HEALTH_CHECK_INTERVAL_S": "0"}, "must be a number from 0.1 to 3600")],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_settings(environ)


def test_settings_have_the_plans_defaults() -> None:
    read = read_settings(ENGINE)
    assert (read.strategy, read.health_check_s, read.port, read.namespace) == ("least_loaded", 10.0, 8080, "default")
    assert read_settings(ENGINE | {"PILOTLIGHT_ROUTER_STRATEGY": "cache_aware"}).strategy == "prefix_aware"


@in_loop
async def test_a_file_of_endpoints_is_read_again_when_it_was_replaced(tmp_path: Path) -> None:
    file = EndpointFile(tmp_path, "default", "llama-engine")
    assert await file.discover() == ()
    announce(tmp_path, "llama-engine", [Replica("one", 1)])
    assert await file.discover() == (Replica("one", 1),)
    announce(tmp_path, "llama-engine", [Replica("two", 2, "192.0.2.1")])
    assert await file.discover() == (Replica("two", 2, "192.0.2.1"),)
    (tmp_path / "default" / "llama-engine.json").write_text("[{")
    assert await file.discover() == (Replica("two", 2, "192.0.2.1"),)
    (tmp_path / "default" / "llama-engine.json").unlink()
    assert await file.discover() == ()


@in_loop
async def test_names_are_looked_up_where_no_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    resolve, failure = loop.getaddrinfo, socket.EAI_NONAME

    async def look(name: str, port: int, **how: Any) -> Any:
        if name != "llama-engine.default" or failure == socket.EAI_AGAIN:
            raise socket.gaierror(failure, "no such name")
        return await resolve("127.0.0.1", port, **how)

    monkeypatch.setattr(loop, "getaddrinfo", look)
    assert await DnsEndpoints("default", "nobody").discover() == ()
    endpoints, without_pods = DnsEndpoints("default", "llama-engine"), (Replica("127.0.0.1:80", 80, "127.0.0.1"),)
    assert await endpoints.discover() == without_pods
    failure = socket.EAI_AGAIN  # for a moment
    assert await endpoints.discover() == without_pods


@in_loop
async def test_an_engine_is_healthy_by_its_probe_or_by_answering_at_all() -> None:
    async def answering(words: dict[str, str]) -> bool:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                writer.write(f"HTTP/1.1 {words.get(path, '404 Not Found')}\r\nContent-Length: 0\r\n\r\n".encode())
            finally:
                writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await is_healthy(Replica("x", server.sockets[0].getsockname()[1]))

    assert await answering({"/v2/health/ready": "200 OK"})
    assert not await answering({"/v2/health/ready": "503 Loading", "/health": "200 OK"})
    assert await answering({"/health": "200 OK"})
    assert await answering({})
    assert not await is_healthy(Replica("x", 1))


async def post(port: int, body: bytes, head: str = "", apart: bool = False) -> Reply:
    """`apart`: the body leaves after the head, as many clients send it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode())
    if apart:
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write(body)
    try:
        return await read_reply(reader)
    finally:
        writer.close()


def prompted(engine: SmallReplica) -> int:
    return sum(asked["line"].startswith("POST") for asked in engine.asked)


@in_loop
async def test_a_router_is_ready_with_its_first_healthy_engine_and_not_without(tmp_path: Path) -> None:
    async with replica("one") as one, router(tmp_path, "round_robin") as port:
        assert (await ask(port, "/healthz")).status == 200
        assert not await ready(port)
        refused = await ask(port, "/v1/models")
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        assert refused.json()["error"] == "no endpoint of llama-engine is ready"
        announce(tmp_path, "llama-engine", [one.config, Replica("dead", 1)])
        await until_ready(port)
        for path in ("/v1/models?x=1", "/v2/models", "/api/tags", "/llama/x"):
            assert (await ask(port, path)).json()["line"] == f"GET {path} HTTP/1.1"
        announce(tmp_path, "llama-engine", [])
        await _until_not(port)


async def _until_not(port: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await ready(port):
            await asyncio.sleep(0.02)


@in_loop
async def test_turns_spread_requests_evenly(tmp_path: Path) -> None:
    async with replica("one") as one, replica("two") as two, router(tmp_path, "round_robin") as port:
        announce(tmp_path, "llama-engine", [one.config, two.config])
        await until_ready(port)
        served = Counter([(await post(port, b"{}")).json()["replica"] for _ in range(10)])
        assert served == {"one": 5, "two": 5}


@in_loop
async def test_a_busy_engine_is_passed_over(tmp_path: Path) -> None:
    async with replica("one", ready=False) as one, replica("two") as two, router(tmp_path, "least_loaded") as port:
        one.open.set()
        announce(tmp_path, "llama-engine", [one.config, two.config])
        await until_ready(port)
        await eventually_async(lambda: one.asked and two.asked, "both checked")
        one.open.clear()
        slow = [asyncio.create_task(post(port, b"{}")) for _ in range(2)]
        await eventually_async(lambda: prompted(one) == 1 and prompted(two) == 1, "one each")
        assert [(await post(port, b"{}")).json()["replica"] for _ in range(3)] == ["two"] * 3
        one.open.set()
        await asyncio.gather(*slow)


@in_loop
async def test_a_request_whose_engine_has_died_goes_to_another_one(tmp_path: Path) -> None:
    async with replica("one") as one, router(tmp_path, "round_robin", health_s="3600") as port:
        async with replica("two") as two:
            announce(tmp_path, "llama-engine", [one.config, two.config])
            await until_ready(port)
            assert {(await post(port, b"{}")).json()["replica"] for _ in range(2)} == {"one", "two"}
        assert [(await post(port, b"{}")).json()["replica"] for _ in range(6)] == ["one"] * 6


@in_loop
async def test_the_same_prompt_goes_to_the_same_engine_even_when_it_comes_after_its_head(tmp_path: Path) -> None:
    async with replica("one") as one, replica("two") as two, router(tmp_path, "prefix_aware") as port:
        announce(tmp_path, "llama-engine", [one.config, two.config])
        await until_ready(port)
        for prompt in ("lighthouse", "harbour", "foghorn"):
            body = json.dumps({"prompt": prompt * 50}).encode()
            served = {(await post(port, body, apart=apart)).json()["replica"] for apart in (True, False) * 3}
            assert len(served) == 1


@in_loop
async def test_a_client_that_leaves_before_its_prompt_came_costs_nothing(tmp_path: Path) -> None:
    async with replica("one") as one, router(tmp_path, "prefix_aware") as port:
        announce(tmp_path, "llama-engine", [one.config])
        await until_ready(port)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        await writer.drain()
        writer.close()
        assert (await post(port, b"{}")).status == 200
        assert (await ask(port, "/metrics")).status == 200


@asynccontextmanager
async def disaggregated(folder: Path) -> AsyncIterator[tuple[int, SmallReplica, Sequence[SmallReplica]]]:
    """The router's port, a prefill engine and two decoders; only the decoders are announced."""
    async with replica("prefill") as prefill, replica("decode-1") as first, replica("decode-2") as second:
        announce(folder, "llama-decoder", [first.config, second.config])
        async with router(folder, "prefill_decode", "llama-decoder") as port:
            yield port, prefill, (first, second)


@in_loop
async def test_a_decoder_is_told_which_prefill_engine_was_chosen(tmp_path: Path) -> None:
    async with disaggregated(tmp_path) as (port, prefill, decoders):
        await eventually_async(lambda: all(each.asked for each in decoders), "checked")
        assert not await ready(port)  # no prefill engine yet
        announce(tmp_path, "llama-engine", [prefill.config])
        await until_ready(port)
        forged = "x-prefiller-host-port: 192.0.2.66:1\r\n"
        replies = [(await post(port, b"{}", forged)).json() for _ in range(4)]
        assert Counter(reply["replica"] for reply in replies) == {"decode-1": 2, "decode-2": 2}
        place = f"127.0.0.1:{prefill.port}"
        assert [reply["headers"]["x-prefiller-host-port"] for reply in replies] == [place] * 4
        assert not prompted(prefill)


@in_loop
async def test_a_router_that_cannot_look_for_its_engines_ends_with_an_error_that_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Router(read_settings(ENGINE | {"INFERENCE_HTTP_PORT": "0", "PILOTLIGHT_ENDPOINTS_DIR": str(tmp_path)}))

    class Broken:
        looks = 0

        async def discover(self) -> tuple[Replica, ...]:
            self.looks += 1
            if self.looks > 1:
                raise RuntimeError("no such source")
            return ()

    made._engines = EndpointPool(Broken(), 1.0)
    with pytest.raises(RuntimeError, match="no such source"):
        await asyncio.wait_for(made.run(), DEADLINE_S)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (failed,) = [line for line in said if line["event"] == "router.failed"]
    assert (failed["level"], failed["message"]) == ("ERROR", "RuntimeError: no such source")
