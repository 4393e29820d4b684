"""Routes of the control process, called by strangers and by read-only sessions, over an engine that remembers."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.platform.api.conftest import TOKEN, Served, api
from tests.platform.console.test_routes import Visitor

from pilotlight.api.log_files import tail_offset
from pilotlight.console.sessions import HEADER_PROOF
from pilotlight.control_plane.app import make_app
from pilotlight.targets.target import Release, ServiceStatus

pytestmark = pytest.mark.security
__all__ = ["api"]  # the fixture
SERVICE = "/console/api/v1/namespaces/default/services"
# What a browser needs before it has a session, and scrapes.
PUBLIC = {
    "/", "/healthz", "/metrics", "/metrics/replicas/{replica}", "/api/v1/openapi.json", "/api/v1/docs",
    "/api/v1/docs/{file}", "/console", "/console/", "/console/static/{file}",
}  # fmt: skip
# What a read-only session may send: requests to models, queries, and its logout. A login is open to every page.
HARMLESS = {
    ("DELETE", "/console/api/session"), ("POST", "/console/api/login"), ("POST", "/console/api/v1/query_range"),
    ("POST", "/console/api/v1/namespaces/{namespace}/services/{name}/ask/{path}"),
}  # fmt: skip


def routes(served: Served) -> Iterator[tuple[str, str]]:
    """Method and path of everything that the control process serves."""
    for route in make_app(served.engine, TOKEN, served.drained.append).router.routes():
        assert route.resource is not None
        yield route.method, route.resource.canonical


def path_of(pattern: str, name: str = "iris") -> str:
    return re.sub(r"\{\w+\}", "default", pattern.replace("{path}", "v2/models").replace("{name}", name))


@pytest.fixture
def watcher(api: Served) -> Visitor:
    """A read-only session."""
    visitor = Visitor(api.port)
    assert visitor.enter(api.target.console(read_only=True).ticket) == 200
    return visitor


def test_no_route_answers_a_stranger(api: Served) -> None:
    stranger, found = Visitor(api.port), set(routes(api))
    assert len(found) > 60
    for method, pattern in found:
        if pattern not in PUBLIC and (method, pattern) != ("POST", "/console/api/login"):
            assert stranger.ask(method, path_of(pattern))[0] in (401, 403), (method, pattern)
    assert not api.drained


# A service may be called like the last part of a route.
@pytest.mark.parametrize("name", ["iris", "query", "query_range", "session", "ask"])
def test_a_read_only_session_changes_no_service_whatever_its_name(api: Served, watcher: Visitor, name: str) -> None:
    release = Release("default", name, "", ())
    api.engine.kept["default", name] = [release]
    body = {"namespace": "default", "name": name, "document": "", "manifests": []}
    changing = {(method, pattern) for method, pattern in routes(api) if method not in ("GET", "HEAD")}
    for method, pattern in changing - HARMLESS:
        if pattern.startswith("/console"):
            assert watcher.ask(method, path_of(pattern, name), body)[0] == 403, (method, pattern)
    assert api.engine.kept == {("default", name): [release]}
    assert (api.engine.bounds, api.engine.shares, api.engine.secrets) == ({}, {}, {})


def test_an_instant_query_is_not_for_a_read_only_session(watcher: Visitor) -> None:
    """The control process would store the metrics that it names for as long as its range: here, without end."""
    assert watcher.ask("POST", "/console/api/v1/query", {"query": "max_over_time(up[100y])"})[0] == 403


def test_a_request_to_a_model_is_not_held_in_memory(api: Served, watcher: Visitor) -> None:
    """2,000 connections with 64 MiB each would be more than the control process has."""
    with socket.create_server(("127.0.0.1", 0)) as service:
        url = f"http://127.0.0.1:{service.getsockname()[1]}"
        api.engine.status = lambda key: ServiceStatus(*key, 1, "Ready", url)  # type: ignore[method-assign]
        head = {
            "Host": f"127.0.0.1:{api.port}", "Origin": f"http://127.0.0.1:{api.port}", "Cookie": watcher.cookie,
            HEADER_PROOF: watcher.proof, "Content-Length": "10",
            "Connection": "close",
        }  # fmt: skip
        lines = [f"POST {SERVICE}/iris/ask/v2/models/iris/infer HTTP/1.1", *(f"{k}: {v}" for k, v in head.items())]
        service.settimeout(20)
        with socket.create_connection(("127.0.0.1", api.port), timeout=20) as client:
            client.sendall("\r\n".join([*lines, "", "first"]).encode())  # the rest does not come yet
            forwarded, _ = service.accept()
            with forwarded:
                forwarded.settimeout(20)
                got = b""
                while not got.endswith(b"first"):
                    got += forwarded.recv(65536)
                client.sendall(b"other")
                while not got.endswith(b"firstother"):
                    got += forwarded.recv(65536)
                assert b"Content-Length: 10\r\n" in got
                forwarded.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            reply = b"".join(iter(lambda: client.recv(65536), b""))
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["body"] == "ok"


def test_the_last_lines_of_a_large_log_are_found_in_a_moment(tmp_path: Path) -> None:
    """It is read on the event loop. Reading it again with every chunk took the square of its length."""
    log = tmp_path / "replica.log"
    with log.open("wb") as file:
        file.truncate(100 << 20)
    began = time.process_time()
    assert tail_offset(log, 10**9) == 0
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "1e3", "\u0661"])
def test_a_number_that_the_store_does_not_have_is_a_usage_error(api: Served, watcher: Visitor, number: str) -> None:
    assert watcher.ask("GET", f"/console/api/v1/events?after={quote(number)}")[0] == 400
