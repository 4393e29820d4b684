"""Servers that lead a download astray: redirects to this machine and to metadata, downgrades, archives that slip."""

import io
import json
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.store_interface import FetchOptions

pytestmark = pytest.mark.security
OPTIONS = FetchOptions(allow_http=True, retries=0, timeout=5, spare_bytes=0)
LOOPBACK = [
    "127.0.0.1",
    "127.1",
    "0.0.0.0",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "localhost",
    "[::ffff:127.0.0.1]",
]
METADATA = ["169.254.169.254", "2852039166", "0xa9fea9fe", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"]


class _Attacker(BaseHTTPRequestHandler):
    """`/to/URL` redirects there, `/archive.tar` is what a test put there, `/v2/` a registry whose tokens come from
    `realm`; anything else is a secret of this machine."""

    archive = b""
    realm = ""
    token = '{"token": "SECRET"}'
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", unquote(self.path).removeprefix("/to/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path.startswith("/v2/"):
            self.send_response(401)
            self.send_header("WWW-Authenticate", f'Bearer realm="{self.realm}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = (
            self.token.encode()
            if self.path.startswith("/token")
            else self.archive
            if self.path.endswith(".tar")
            else b"SECRET"
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"a"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        return


class Attacker:
    def __init__(self, host: str, server: ThreadingHTTPServer, handler: type[_Attacker]) -> None:
        self.host, self.port, self.handler = host, server.server_address[1], handler

    def leads_to(self, url: str) -> str:
        return f"http://{self.host}:{self.port}/to/{url}"

    @property
    def secrets_told(self) -> bool:
        return any(not path.startswith(("/to/", "/v2/")) for path in self.handler.asked)


@pytest.fixture
def attacker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attacker]:
    """A server at this machine's address in the network, which to a client is elsewhere; it answers on loopback too."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address beside loopback")
        host = probe.getsockname()[0]
    handler = type("Handler", (_Attacker,), {"asked": []})
    with ThreadingHTTPServer(("0.0.0.0", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield Attacker(host, server, handler)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_redirect_does_not_reach_this_machine(attacker: Attacker, tmp_path: Path, host: str) -> None:
    with pytest.raises(LoadFailed, match="this machine"):
        fetch(attacker.leads_to(f"http://{host}:{attacker.port}/secret.onnx"), tmp_path, options=OPTIONS)
    assert not attacker.secrets_told


def test_nor_does_the_second_of_two_redirects(attacker: Attacker, tmp_path: Path) -> None:
    last = f"http://127.1:{attacker.port}/secret.onnx"
    with pytest.raises(LoadFailed, match="this machine"):
        fetch(attacker.leads_to(attacker.leads_to(last)), tmp_path, options=OPTIONS)
    assert not attacker.secrets_told


@pytest.mark.parametrize("host", LOOPBACK)
def test_nor_does_a_registry_that_sends_for_a_token(attacker: Attacker, tmp_path: Path, host: str) -> None:
    attacker.handler.realm = f"http://{host}:{attacker.port}/token"
    with pytest.raises(LoadFailed, match="this machine"):
        fetch(f"oci+fetch://{attacker.host}:{attacker.port}/model:1", tmp_path, options=OPTIONS)
    assert not attacker.secrets_told


def test_nor_by_a_name_that_leads_here(attacker: Attacker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo",
        lambda host, *more, **options: resolve("127.0.0.1" if host == "auth.example" else host, *more, **options),
    )  # fmt: skip
    attacker.handler.realm = f"http://auth.example:{attacker.port}/token"
    with pytest.raises(LoadFailed, match="this machine"):
        fetch(f"oci+fetch://{attacker.host}:{attacker.port}/model:1", tmp_path, options=OPTIONS)
    assert not attacker.secrets_told


def test_a_token_is_no_header(attacker: Attacker, tmp_path: Path) -> None:
    attacker.handler.realm = f"http://{attacker.host}:{attacker.port}/token"
    attacker.handler.token = json.dumps({"token": "a\r\nHost: victim"})
    with pytest.raises(LoadFailed, match="no token"):
        fetch(f"oci+fetch://{attacker.host}:{attacker.port}/model:1", tmp_path, options=OPTIONS)


@pytest.mark.parametrize("host", METADATA)
def test_a_redirect_does_not_reach_metadata(attacker: Attacker, tmp_path: Path, host: str) -> None:
    with pytest.raises(LoadFailed, match="metadata address"):
        fetch(attacker.leads_to(f"http://{host}/latest/meta-data/"), tmp_path, options=OPTIONS)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/m", "gopher://127.0.0.1:6379/_x"])
def test_a_redirect_stays_on_http(attacker: Attacker, tmp_path: Path, url: str) -> None:
    with pytest.raises(LoadFailed, match="must stay on https"):
        fetch(attacker.leads_to(url), tmp_path, options=OPTIONS)


def test_the_command_refuses_as_well_and_shows_no_password(attacker: Attacker, tmp_path: Path) -> None:
    url = attacker.leads_to(f"http://2130706433:{attacker.port}/secret.onnx").replace("://", "://user:hunter2@", 1)
    command = [sys.executable, "-m", "pilotlight_predictor", "fetch", url, str(tmp_path), "--allow-http"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "this machine" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert not attacker.secrets_told


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "members",
    [
        [_member("../outside")],
        [_member("/tmp/outside")],
        [_member("a/../../outside")],
        [_member("link", tarfile.SYMTYPE, "/etc"), _member("link/outside")],
        [_member("link", tarfile.SYMTYPE, "../..")],
        [_member("hard", tarfile.LNKTYPE, "../../etc/passwd")],
        [_member("device", tarfile.CHRTYPE)],
        [_member("pipe", tarfile.FIFOTYPE)],
    ],
    ids=lambda members: members[0].name.replace("/", "|") + str(members[0].type),
)
def test_an_archive_writes_nothing_outside(attacker: Attacker, tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member in members:
            tar.addfile(member)
    attacker.handler.archive = packed.getvalue()
    with pytest.raises(LoadFailed):
        fetch(f"http://{attacker.host}:{attacker.port}/m.tar", tmp_path / "cache", options=OPTIONS)
    assert not [path for path in tmp_path.rglob("*") if path.name in {"outside", "link", "hard", "device", "pipe"}]
