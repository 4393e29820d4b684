"""Real servers on loopback: plain HTTP with every vice, S3, Google's XML API, Azurite, and a stand-in for the hub."""

import base64
import hashlib
import hmac
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import pytest
from tests import object_stores
from tests.object_stores import AZURE_ACCOUNT, AZURE_KEY, Bucket

from pilotlight_predictor.storage.store_interface import FetchOptions

KIB = 1024
STORAGE_VARIABLES = re.compile(r"^(AWS|AZURE|GOOGLE|HF|HUGGING|REGISTRY|STORAGE)_|_PROXY$", re.IGNORECASE)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a developer has exported must not reach the tests."""
    for name in list(os.environ):
        if STORAGE_VARIABLES.search(name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))


@pytest.fixture
def options() -> FetchOptions:
    return FetchOptions(
        part_bytes=64 * KIB, concurrency=4, retries=3, first_delay=0.001, max_delay=0.01, timeout=60, spare_bytes=0
    )


def content(size: int, seed: int = 0) -> bytes:
    """Bytes in which no two parts are alike."""
    return hashlib.shake_128(str(seed).encode()).digest(size)


@dataclass
class WebServer:
    """Serves `files`; the other fields switch its vices on. Counts what it sends."""

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)  # answered first, in order
    ranges: bool = True
    etags: bool = True
    lengths: bool = True
    drop_after: int = -1  # bytes of one answer after which the connection is cut, once
    hold_after: int = -1  # bytes of all answers after which every answer waits for `released`
    hang_up: bool = False  # closes each connection after one answer without having said so
    connections: int = 0
    held: int = 0  # answers that wait
    released: threading.Event = field(default_factory=threading.Event)
    on_request: Callable[[str], None] = lambda path: None
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    body_bytes: int = 0  # without those of probes, which clients do not wait for
    lock: threading.Lock = field(default_factory=threading.Lock)
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def probes(self) -> int:
        return sum(headers.get("range") == "bytes=0-0" for _, headers in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: WebServer

    def log_message(self, *args: Any) -> None:
        return

    def setup(self) -> None:
        super().setup()
        with self.web.lock:
            self.web.connections += 1

    def do_GET(self) -> None:
        web, path = self.web, unquote(urlsplit(self.path).path)
        with web.lock:
            web.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status = web.statuses.pop(0) if web.statuses else 0
        web.on_request(path)
        if status:
            self._empty(status, {})
        elif path in web.redirects:
            self._empty(302, {"Location": web.redirects[path]})
        elif path not in web.files:
            self._empty(404, web.headers.get(path, {}))
        else:
            self._file(path, web.files[path])

    def _empty(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _file(self, path: str, body: bytes) -> None:
        web = self.web
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if web.ranges else None
        start, end = (int(wanted[1]), min(int(wanted[2]) + 1, len(body))) if wanted else (0, len(body))
        if wanted and start >= len(body):
            self._empty(416, {"Content-Range": f"bytes */{len(body)}"})
            return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
        if web.etags:
            self.send_header("ETag", '"' + hashlib.md5(body).hexdigest() + '"')
        for name, value in web.headers.get(path, {}).items():
            self.send_header(name, value)
        if web.lengths:
            self.send_header("Content-Length", str(end - start))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        self._send(body[start:end])
        self.close_connection = self.close_connection or web.hang_up or not web.lengths

    def _send(self, body: bytes) -> None:
        web, probe = self.web, self.headers.get("Range") == "bytes=0-0"
        for start in range(0, len(body), 8 * KIB):
            with web.lock:
                drop = 0 <= web.drop_after <= start
                if drop:
                    web.drop_after = -1
                hold = 0 <= web.hold_after <= web.body_bytes
            if drop:
                self.close_connection = True
                return
            if hold:
                with web.lock:
                    web.held += 1
                web.released.wait(60)
            piece = body[start : start + 8 * KIB]
            with web.lock:
                web.body_bytes += 0 if probe else len(piece)  # before the client can have it and look
            try:
                self.wfile.write(piece)
            except OSError:
                self.close_connection = True
                return


@contextmanager
def _serving(server: WebServer, context: ssl.SSLContext | None = None) -> Iterator[int]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"web": server}))
    httpd.handle_error = lambda *args: None  # type: ignore[method-assign] - a client that hangs up is part of a test
    httpd.daemon_threads = True
    if context is not None:
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield httpd.server_address[1]
    finally:
        server.released.set()
        httpd.shutdown()
        httpd.server_close()
        thread.join()


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    with _serving(server) as server.port:
        yield server


@pytest.fixture
def tls_port(web: WebServer, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The same files over TLS, and the file with the certificate that the server made for itself."""
    certificate = tmp_path / "self-made.pem"
    certificate.write_bytes(_self_signed("localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with _serving(web, context) as port:
        yield port, certificate


def _self_signed(host: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return secret + builder.sign(key, hashes.SHA256()).public_bytes(pem)


_FETCH = """
import sys
from pathlib import Path
from pilotlight_predictor.storage import fetcher, store_interface, sync
options = store_interface.FetchOptions(part_bytes=64 * 1024, concurrency=2, spare_bytes=0)
functions = {**vars(fetcher), **vars(sync)}
functions[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), options=options)
"""


@pytest.fixture
def killed_midway(web: WebServer) -> Callable[[str, str, Path], int]:
    """Runs `fetch` or `fetch_into` in a process of its own and kills it in the middle; how many parts it had noted."""

    def run(function: str, uri: str, directory: Path) -> int:
        web.hold_after = 6 * 64 * KIB
        process = subprocess.Popen([sys.executable, "-c", _FETCH, function, uri, str(directory)])
        deadline = time.monotonic() + 60
        while web.held < 2:  # then both of its threads wait for bytes and have noted all that came before
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()
        web.hold_after = -1
        web.released.set()
        web.requests.clear()
        return sum(len(log.read_text().splitlines()) - 1 for log in directory.rglob("*.log"))

    return run


@dataclass
class Hub:
    """The hub's two routes over a WebServer: the listing of a revision and the files of a commit."""

    web: WebServer
    commits: int = 0

    def publish(
        self, repo: str, files: dict[str, bytes], lfs: frozenset[str] = frozenset(), revision: str = "main"
    ) -> str:
        self.commits += 1
        commit = hashlib.sha1(f"{repo} {self.commits}".encode()).hexdigest()
        siblings = [self._sibling(path, body, path in lfs) for path, body in files.items()]
        info = json.dumps({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings}).encode()
        for name in (revision, commit):
            path = f"/api/models/{repo}/revision/{name}"
            self.web.files[path] = info
            self.web.headers[path] = {"Content-Type": "application/json"}
        for path, body in files.items():
            # As on the real hub, large files are redirected to a content network with etags of its own.
            self.web.redirects[f"/{repo}/resolve/{commit}/{path}"] = self.web.url(f"/cdn/{commit}/{path}")
            self.web.files[f"/cdn/{commit}/{path}"] = body
        return commit

    @staticmethod
    def _sibling(path: str, body: bytes, lfs: bool) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        facts: dict[str, Any] = {"rfilename": path, "size": len(body), "blobId": blob}
        if lfs:
            digest = hashlib.sha256(body).hexdigest()
            facts["lfs"] = {"size": len(body), "sha256": digest, "pointerSize": 130}
        return facts


@pytest.fixture
def hub(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_ENDPOINT", web.url(""))
    return Hub(web)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    with object_stores.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    with object_stores.azurite() as endpoint:
        yield endpoint


@pytest.fixture
def bucket_name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "models" + hashlib.sha1(f"{request.node.nodeid}{tmp_path}".encode()).hexdigest()[:16]


def _found(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    return bucket


@pytest.fixture
def s3_bucket(s3_server: str, bucket_name: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return _found(object_stores.s3_bucket(s3_server, bucket_name), monkeypatch)


@pytest.fixture
def gs_bucket(s3_server: str, bucket_name: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return _found(object_stores.gs_bucket(s3_server, bucket_name), monkeypatch)


@pytest.fixture
def az_bucket(azurite: str, bucket_name: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return _found(object_stores.az_bucket(azurite, bucket_name), monkeypatch)


@pytest.fixture
def suspended_bucket(s3_server: str, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket whose versions were on and are off: S3 sends the version "null" then, which moto leaves out."""
    for status in ("Enabled", "Suspended"):
        object_stores.set_versions(s3_server, s3_bucket, status)
    with object_stores.version_headers(s3_server, "x-amz-version-id", "null") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        yield s3_bucket


@pytest.fixture(params=["s3", "gs"])
def versioned_bucket(request: pytest.FixtureRequest, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket that has old versions; Azurite has none."""
    bucket: Bucket = request.getfixturevalue(f"{request.param}_bucket")
    object_stores.set_versions(s3_server, bucket, "Enabled")
    if request.param == "s3":
        yield object_stores.VersionedBucket(bucket, s3_server)
        return
    with object_stores.version_headers(s3_server, "x-goog-generation") as endpoint:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", urlsplit(endpoint).netloc)
        yield object_stores.VersionedBucket(bucket, s3_server)


@pytest.fixture
def azure_signature() -> str:
    """An account's shared access signature that may read and list blobs for an hour."""
    ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"sv": "2021-12-02", "ss": "b", "srt": "sco", "sp": "rl", "se": ends}
    text = f"{AZURE_ACCOUNT}\nrl\nb\nsco\n\n{ends}\n\n\n2021-12-02\n\n"
    mac = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return urlencode({**fields, "sig": base64.b64encode(mac).decode()})


@pytest.fixture(params=["s3", "gs", "az"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(f"{request.param}_bucket")
    return found


@pytest.fixture(name="content")
def content_function() -> Callable[..., bytes]:
    return content
