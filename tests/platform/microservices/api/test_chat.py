"""What the server in a microservice says of itself, in whatever form it answers: a real server and a real client."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from pilotlight.microservices.api.jobs import server_status

HTML = "<!doctype html>\n<title>400 Bad Request</title>\n<p>messages must not be empty</p>"


def said_of(status: web.Response, chat: web.Response) -> Mapping[str, Any] | None:
    """Of a server that answers /status and an empty chat so."""

    async def asked() -> Mapping[str, Any] | None:
        async def told(_: web.Request) -> web.Response:
            return status

        async def answered(_: web.Request) -> web.Response:
            return chat

        app = web.Application()
        app.add_routes([web.get("/status", told), web.post("/v1/chat/completions", answered)])
        async with TestServer(app) as server, ClientSession() as session:
            return await server_status(session, str(server.make_url("")).rstrip("/"))

    return asyncio.run(asked())


@pytest.mark.parametrize(
    "chat",
    [
        web.Response(status=400, text=HTML, content_type="text/html"),
        web.Response(status=422, body=b"\xff no text at all"),
        web.json_response({"error": {"message": "messages is empty"}}, status=400),
    ],
    ids=["html", "bytes", "json"],
)
def test_a_server_that_refuses_an_empty_chat_is_ready_in_whatever_form_it_says_so(chat: web.Response) -> None:
    assert said_of(web.Response(status=404, text="not found"), chat) == {"state": "ready"}


@pytest.mark.parametrize("kind", ["model_not_ready", "model_load_error", ""])
def test_202_is_a_load_whatever_its_error_type(kind: str) -> None:
    chat = web.json_response({"error": {"type": kind, "message": "wait"}}, status=202)
    assert said_of(web.Response(status=404), chat) == {"state": "loading", "models": True}
    chat = web.json_response({"error": {"type": "initializing", "message": "wait"}}, status=202)
    assert said_of(web.Response(status=404), chat) == {"state": "initializing"}


def test_a_page_at_status_is_none_of_ours_and_the_chat_is_asked() -> None:
    page = web.Response(text="<html>welcome</html>", content_type="text/html")
    assert said_of(page, web.json_response({}, status=202)) == {"state": "loading", "models": True}


def test_of_a_status_without_an_end_only_the_begin_is_read() -> None:
    long = web.Response(text='{"state": "ready", "more": "' + "x" * (32 << 20) + '"}')
    assert said_of(long, web.json_response({}, status=202)) == {"state": "loading", "models": True}


@pytest.mark.parametrize("text", ["[" * 200_000, "[" + "[]," * 150_000 + "1]"], ids=["deep", "many lists"])
def test_a_status_that_takes_long_to_decode_is_not_decoded(text: str) -> None:
    assert said_of(web.Response(text=text), web.json_response({}, status=202)) == {"state": "loading", "models": True}


def test_a_status_elsewhere_is_not_asked() -> None:
    moved = web.Response(status=302, headers={"Location": "/v1/chat/completions"})
    assert said_of(moved, web.json_response({"state": "ready"}, status=202)) == {"state": "loading", "models": True}


@pytest.mark.parametrize("progress", [5, "half", ["x"], {"done_bytes": "x"}, {"done_bytes": 1, "total_bytes": None}])
def test_a_progress_of_another_form_is_left_out(progress: Any) -> None:
    said = web.json_response({"state": "loading", "progress": progress})
    assert said_of(said, web.json_response({})) == {"state": "loading"}
    good = {"state": "loading", "progress": {"done_bytes": 1, "total_bytes": 2}}
    assert said_of(web.json_response(good), web.json_response({})) == good
