"""The feed over HTTP: everything at first, then what changed; it ends with the session and with the process."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, CookieJar, web
from tests.platform.api.conftest import TOKEN, Remembering, Served
from tests.platform.console.test_routes import Visitor

from pilotlight.api import streams
from pilotlight.canaries.canary_state import Canary, CanaryHistory
from pilotlight.console import live_feed
from pilotlight.console.sessions import HEADER_PROOF
from pilotlight.control_plane.app import make_app
from pilotlight.spec.canary_policy import CanaryPolicy
from pilotlight.targets.target import CanaryRecord, Key, Release

KEY = ("default", "iris")
MANIFEST = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "iris", "namespace": "default"}}


class Canaries:
    """Of an engine that only remembers."""

    def __init__(self) -> None:
        self.state, self.version = "", 0

    def get(self, key: Key) -> CanaryRecord | None:
        return CanaryRecord(*key, self.state, str(self.version)) if self.state else None

    def save(self, key: Key, state: str, version: str) -> CanaryRecord:
        self.state, self.version = state, self.version + 1
        return CanaryRecord(*key, state, str(self.version))


@pytest.fixture
def canaries(api: Served) -> Canaries:
    made = Canaries()
    api.engine.canary, api.engine.save_canary = made.get, made.save  # type: ignore[method-assign]
    return made


@pytest.fixture
def visitor(api: Served, canaries: Canaries) -> Visitor:
    made = Visitor(api.port)
    assert made.enter() == 200
    return made


@contextmanager
def listening(visitor: Visitor, query: str = "") -> Iterator[HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", visitor.port, timeout=60)
    headers = {"Cookie": visitor.cookie, HEADER_PROOF: visitor.proof}
    connection.request("GET", f"/console/api/feed{query}", headers=headers)
    answer = connection.getresponse()
    assert answer.getheader("Content-Type", "").startswith("text/event-stream")
    yield answer
    connection.close()


def heard(stream: HTTPResponse, event: str) -> Any:
    """The data of the next message of that kind."""
    while line := stream.readline():
        if line == f"event: {event}\n".encode():
            return json.loads(stream.readline().removeprefix(b"data: "))
    raise AssertionError(f"the feed ended before {event}")


def deployed(api: Served, name: str = "iris") -> None:
    api.engine.apply(Release("default", name, "document: 1\n", (MANIFEST,)))


def test_it_tells_everything_first_and_then_only_what_changed(api: Served, visitor: Visitor) -> None:
    deployed(api, "one")
    deployed(api, "two")
    with listening(visitor) as stream:
        first = heard(stream, "services")
        assert [row["id"] for row in first["changed"]] == ["default/one", "default/two"]
        assert first["first"]
        deployed(api, "two")
        second = heard(stream, "services")
        assert [(row["id"], row["generation"]) for row in second["changed"]] == [("default/two", 2)]
        assert not second["first"]
        api.engine.delete(("default", "one"))
        assert heard(stream, "services")["gone"] == ["default/one"]


def test_events_come_once_and_in_their_order(api: Served, visitor: Visitor) -> None:
    deployed(api)
    with listening(visitor) as stream:
        assert [each["reason"] for each in heard(stream, "events")] == ["Applied"]
        api.engine.tell(KEY, "Later", "")
        assert [each["reason"] for each in heard(stream, "events")] == ["Later"]


def test_a_reader_that_hears_nothing_is_given_a_beat(
    api: Served, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(live_feed, "POLL_S", 0.01)
    with listening(visitor) as stream:
        heard(stream, "services")
        while (line := stream.readline()) and line.strip() != b": beat":
            pass
        assert line


def test_the_canary_of_the_open_service_is_told_whole(api: Served, visitor: Visitor, canaries: Canaries) -> None:
    deployed(api)
    with listening(visitor, "?service=default/iris") as stream:
        assert heard(stream, "canary") == {"current": None, "past": []}
        canary = Canary(CanaryPolicy(), "iris-2", "iris-1", 2, 1, "2026-01-01T00:00:00Z")
        canaries.save(KEY, json.dumps({"current": json.loads(_encoded(canary))}), "")
        told = heard(stream, "canary")["current"]
        assert (told["phase"], told["policy"]["steps"]) == ("Progressing", [5, 25, 50, 100])  # usual, so not kept


def test_a_wish_is_kept_for_whoever_runs_the_canary(api: Served, visitor: Visitor, canaries: Canaries) -> None:
    path = "/console/api/v1/namespaces/default/services/iris/canary/wish"
    assert visitor.ask("PUT", path, {"wish": "pause"})[0] == 404
    canaries.state = _encoded(CanaryHistory(Canary(CanaryPolicy(), "iris-2", "iris-1", 2, 1, "2026-01-01T00:00:00Z")))
    for wish in ("pause", "resume", "promote", "promote-full", "abort"):
        status, told = visitor.ask("PUT", path, {"wish": wish})
        assert (status, told["current"]["wish"]) == (200, wish)
        assert json.loads(canaries.state)["current"]["wish"] == wish
    assert visitor.ask("PUT", path, {"wish": "explode"})[0] == 400


def test_it_ends_when_the_session_does(api: Served, visitor: Visitor) -> None:
    with listening(visitor) as stream:
        heard(stream, "services")
        assert visitor.ask("DELETE", "/console/api/session")[0] == 200
        stream.read()  # to its end


def test_it_ends_with_the_process_and_does_not_hold_it_up(tmp_path: Path) -> None:
    async def listen() -> None:
        runner = web.AppRunner(make_app(Remembering(tmp_path), TOKEN, lambda drain_s: None), shutdown_timeout=600)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ClientSession(base, headers={"Origin": base}, cookie_jar=CookieJar(unsafe=True)) as client:
            async with client.post("/console/api/login", json={"token": TOKEN}) as answer:
                proof = (await answer.json())["proof"]
            async with client.get("/console/api/feed", headers={HEADER_PROOF: proof}) as stream:
                assert await stream.content.readline() == b"event: services\n"
                ending = asyncio.create_task(runner.cleanup())
                assert await asyncio.wait_for(stream.content.read(), 60)
                await asyncio.wait_for(ending, 60)

    asyncio.run(listen())


def _encoded(value: Any) -> str:
    from msgspec import json as msgspec_json

    return msgspec_json.encode(value).decode()
