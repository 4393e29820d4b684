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


def test_a_page_at_status_is_none_of_ours_and_the_chat_is_asked() -> None:
    page = web.Response(text="<html>welcome</html>", content_type="text/html")
    assert said_of(page, web.json_response({}, status=202)) == {"state": "loading", "models": True}
