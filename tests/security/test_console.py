"""A running platform and a standalone control API, asked by strangers, by web pages, and through the console."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.embedded import Platform, serverless
from tests.platform.console.test_routes import Visitor

pytestmark = pytest.mark.security
ASK = "/console/api/v1/namespaces/default/services/iris/ask"
SCRAPES = "a-token-for-scrapes-only"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with Platform(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def api(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of `platformctl api` on all addresses."""
    file = tmp_path_factory.mktemp("token") / "scrapes"
    file.write_text(SCRAPES)
    words = ["api", "--target", "local", "--host", "0.0.0.0", "--port", "0", "--metrics-token-file", str(file)]
    process = subprocess.Popen(
        [sys.executable, "-m", "platformctl.main", *words], env=platform.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        yield int(process.stdout.readline().strip().rpartition(":")[2])
        process.terminate()


def ask(port: int, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read().decode()
    finally:
        connection.close()


def test_beyond_loopback_metrics_are_for_the_token_for_scrapes_which_opens_nothing_else(
    api: int, platform: Platform
) -> None:
    assert ask(api, "GET", "/metrics")[0] == 401
    assert ask(api, "GET", "/metrics", Authorization=f"Bearer {SCRAPES}x")[0] == 401
    assert ask(api, "GET", "/metrics", Authorization=f"Bearer {SCRAPES}")[0] == 200
    assert ask(api, "GET", "/metrics", Authorization=f"Bearer {platform.address.token}")[0] == 200
    for path in ("/api/v1/services", "/api/v1/events", "/console/api/feed"):
        assert ask(api, "GET", path, Authorization=f"Bearer {SCRAPES}")[0] in (401, 403), path


def test_nobody_learns_which_server_answers(api: int, platform: Platform) -> None:
    for port in (api, platform.address.port):
        assert ask(port, "GET", "/healthz")[1]["server"] == "pilotlight"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"GET / HTTP/9.9\r\n\r\n")
            assert b"aiohttp" not in connection.recv(65536)


def test_no_reply_of_the_consoles_origin_passes_for_a_script(api: int, platform: Platform) -> None:
    for port in (api, platform.address.port):
        for path in ("/healthz", "/metrics", "/metrics/replicas/iris", "/api/v1/docs", "/nowhere", "/console"):
            assert ask(port, "GET", path)[1]["x-content-type-options"] == "nosniff", path


def test_the_gateways_metrics_stay_on_this_machine(platform: Platform) -> None:
    assert ask(platform.gateway_port, "GET", "/metrics")[0] == 200
    status, _, body = ask(platform.gateway_port, "GET", "/metrics", X_Forwarded_For="203.0.113.9")
    assert (status, "for local clients only" in body) == (403, True)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/..%2f..%2f..%2fmetrics", "/v2/%2e%2e/%2e%2e/metrics", "/v2/%252e%252e%252fmetrics", "/v2/..%5cmetrics",
        "/v1/models/../../../metrics", "/v2/.%2e/metrics",
    ],
)  # fmt: skip
def test_the_console_does_not_leave_the_service_that_it_asks(platform: Platform, path: str) -> None:
    visitor = Visitor(platform.address.port)
    assert visitor.enter(platform.address.token) == 200
    status, told = visitor.ask("POST", f"{ASK}{path}", X_Pilotlight_Method="GET")
    assert status in (400, 404)
    assert "pilotlight_gateway" not in json.dumps(told)


@pytest.mark.parametrize("path", ["/api/v1/services", "/api/v1/events", "/console/api/feed", f"{ASK}/v2/models"])
def test_without_a_token_nothing_is_told(platform: Platform, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Basic YTpi"}, {"Cookie": "pilotlight=x"}):
        assert ask(platform.address.port, "GET", path, **headers)[0] in (401, 403, 405), (path, headers)


def test_a_web_page_cannot_use_the_console(platform: Platform) -> None:
    visitor = Visitor(platform.address.port)
    token = platform.address.token
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{platform.gateway_port}"):
        assert visitor.enter(token, Origin=origin) in (401, 403), origin
    assert ask(platform.address.port, "GET", "/console", Host="evil.example")[0] == 403
    assert visitor.enter(token) == 200
    delete = "/console/api/v1/namespaces/default/services/iris"
    assert visitor.ask("DELETE", delete, Origin=None)[0] == 403
    cookie_alone = Visitor(platform.address.port, visitor.cookie)
    assert cookie_alone.ask("DELETE", delete)[0] in (401, 403)


def test_a_read_only_session_sees_no_credential_of_a_model_uri(platform: Platform) -> None:
    uri = "https://user:hunter2@127.0.0.1:1/model.onnx?signature=hunter3"
    platform.deploy(serverless("private", uri=uri))
    watcher = Visitor(platform.address.port)
    assert watcher.enter(platform.target.console(read_only=True).ticket) == 200
    status, rows = watcher.ask("GET", "/console/api/v1/services")
    assert (status, "https://***@127.0.0.1:1/model.onnx?***" in str(rows), "hunter" in str(rows)) == (200, True, False)
    platform.target.delete(("default", "private"))


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}/model.onnx", "https://127.0.0.1:{port}/model.onnx"])
def test_validation_connects_to_nothing_that_a_manifest_names(platform: Platform, uri: str) -> None:
    visitor = Visitor(platform.address.port)
    assert visitor.enter(platform.address.token) == 200
    with socket.create_server(("127.0.0.1", 0)) as store:
        text = serverless(uri=uri.format(port=store.getsockname()[1]))
        assert visitor.ask("POST", "/console/api/manifests/validate", {"text": text})[1]["valid"] is True
        store.setblocking(False)
        with pytest.raises(BlockingIOError):
            store.accept()


def test_files_of_the_machine_are_not_served(platform: Platform) -> None:
    for path in ("/console/../token", "/console/..%2f..%2ftoken", "/console/static/%2e%2e/%2e%2e/token"):
        status, _, body = ask(platform.address.port, "GET", path)
        assert status in (401, 403, 404), path
        assert Path(platform.home.root / "token").read_text().strip() not in body
