"""Who may ask the control API: owners of the token, on this machine, by its own names."""

import asyncio
import json
import socket
from http.client import HTTPConnection

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from tests.platform.api.conftest import TOKEN, Served

from pilotlight import __version__
from pilotlight.api.middlewares import authorize_metrics, is_admin
from pilotlight.api.target_adapters import METRICS_TOKEN
from pilotlight.api.target_adapters import TOKEN as TOKEN_KEY
from pilotlight.contract import HEADER_VERSION
from pilotlight.control_plane.app import AREAS
from pilotlight.errors import Unauthorized

CLOSED = [(route.method, route.path) for area in AREAS if area.name == "services" for route in area.routes]


def ask(api: Served, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", api.port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), CLOSED)
@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer wrong", TOKEN, "Basic " + TOKEN])
def test_every_route_but_healthz_wants_the_token(api: Served, method: str, path: str, shown: str) -> None:
    status, _, body = ask(api, method, path.format(namespace="a", name="b"), {"Authorization": shown})
    assert status == 401
    assert json.loads(body)["exit_code"] == 1
    assert not api.drained


def test_the_root_leads_a_browser_to_the_console(api: Served) -> None:
    status, headers, _ = ask(api, "GET", "/", {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (status, headers["Location"]) == (302, "/console")


@pytest.mark.parametrize(("token", "status"), [("", 401), (f"Bearer {TOKEN}", 404)])
def test_the_root_does_not_exist_for_other_clients(api: Served, token: str, status: int) -> None:
    got, _, body = ask(api, "GET", "/", {"Accept": "application/json", "Authorization": token})
    assert got == status
    assert json.loads(body)["error"]


def test_healthz_wants_none(api: Served) -> None:
    assert ask(api, "GET", "/healthz", {})[0] == 200


@pytest.mark.parametrize("path", ["/healthz", "/console", "/api/v1/services", "/api/v1/openapi.json"])
def test_head_goes_where_get_does_through_the_same_gate(api: Served, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
        (got, whole, body), (asked, head, nothing) = (ask(api, method, path, headers) for method in ("GET", "HEAD"))
        assert (asked, head["Content-Type"], nothing) == (got, whole["Content-Type"], b"")
        assert int(head["Content-Length"]) == len(body)


@pytest.mark.parametrize("path", ["/api/v1/events?follow=true", "/api/v1/services/a/b/logs?follow=true"])
def test_head_of_a_stream_ends_and_the_connection_goes_on(api: Served, path: str) -> None:
    connection = HTTPConnection("127.0.0.1", api.port, timeout=60)
    try:
        for method, where in (("HEAD", path), ("GET", "/healthz")):
            connection.request(method, where, headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status in ((200, 404) if method == "HEAD" else (200,))
    finally:
        connection.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8091", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_another_host_than_loopback_is_refused_even_with_the_token(api: Served, host: str) -> None:
    status, _, body = ask(api, "GET", "/healthz", {"Host": host, "Authorization": f"Bearer {TOKEN}"})
    assert status == 403
    assert "must be 127.0.0.1, localhost or [::1]" in json.loads(body)["error"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8091", "LOCALHOST", "[::1]:8091", "[::1]"])
def test_the_names_of_loopback_are_taken(api: Served, host: str) -> None:
    assert ask(api, "GET", "/healthz", {"Host": host})[0] == 200


def test_every_reply_says_of_which_version_it_is(api: Served) -> None:
    for path in ("/healthz", "/api/v1/version", "/nowhere"):
        assert ask(api, "GET", path, {"Authorization": f"Bearer {TOKEN}"})[1][HEADER_VERSION] == __version__


@pytest.mark.parametrize(
    ("scrapes", "shown", "allowed"),
    [
        (None, "", True),  # bound to loopback
        ("", "", False),
        ("", "Bearer ", False),
        ("", f"Bearer {TOKEN}", True),
        ("for-scrapes-only", "Bearer for-scrapes-only", True),
        ("for-scrapes-only", "Bearer wrong", False),
    ],
)
def test_beyond_loopback_metrics_want_a_token(scrapes: str | None, shown: str, allowed: bool) -> None:
    app = web.Application()
    app[TOKEN_KEY] = TOKEN
    if scrapes is not None:
        app[METRICS_TOKEN] = scrapes
    request = make_mocked_request("GET", "/metrics", {"Authorization": shown}, app=app)
    if allowed:
        asyncio.run(authorize_metrics(request))
    else:
        with pytest.raises(Unauthorized, match="needs a bearer token"):
            asyncio.run(authorize_metrics(request))


def test_the_token_for_scrapes_opens_nothing_else() -> None:
    app = web.Application()
    app[TOKEN_KEY], app[METRICS_TOKEN] = TOKEN, "for-scrapes-only"
    assert not is_admin(make_mocked_request("GET", "/", {"Authorization": "Bearer for-scrapes-only"}, app=app))


def test_no_reply_tells_of_the_server_below(api: Served) -> None:
    assert ask(api, "GET", "/healthz", {})[1]["Server"] == "pilotlight"
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
        reply = connection.recv(65536)
    assert reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert b"aiohttp" not in reply


def test_a_path_that_does_not_exist_is_told_like_any_error(api: Served) -> None:
    status, _, body = ask(api, "GET", "/nowhere", {"Authorization": f"Bearer {TOKEN}"})
    assert status == 404
    assert json.loads(body) == {"error": "GET /nowhere: Not Found", "hint": "", "exit_code": 3}
