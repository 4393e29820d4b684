"""Real servers on loopback and media made on the spot; each test says by its limits what it allows."""

import io
import os
import re
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from tests import object_stores
from tests.object_stores import AZURE_ACCOUNT, Bucket

from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.records import Workspace

LOOPBACK = Limits(networks=("127.0.0.0/8", "::1/128"), allow_http=True, domains=("*",), seconds=30)
STORAGE_VARIABLES = re.compile(r"^(AWS|AZURE|WORKSPACE|PILOTLIGHT)_|_PROXY$", re.IGNORECASE)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a developer has exported must not reach the tests."""
    for name in list(os.environ):
        if STORAGE_VARIABLES.search(name):
            monkeypatch.delenv(name)


@pytest.fixture
def limits() -> Limits:
    """What no operator would allow without thinking: this machine."""
    return LOOPBACK


def png(width: int = 4, height: int = 3, colour: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """A few bytes that would become as many pixels as they say."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def gif(frames: int = 2, width: int = 2, height: int = 2) -> bytes:
    from PIL import Image

    pictures = [Image.new("P", (width, height), at % 250) for at in range(frames)]
    buffer = io.BytesIO()
    pictures[0].save(buffer, "GIF", save_all=True, append_images=pictures[1:], optimize=False)
    return buffer.getvalue()


def video(frames: int = 12, size: tuple[int, int] = (32, 24), container: str = "mp4", codec: str = "mpeg4") -> bytes:
    """Frame by frame a brighter grey."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for at in range(frames):
            grey = np.full((size[1], size[0], 3), at * 255 // max(1, frames - 1), dtype="u1")
            for packet in stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")):
                output.mux(packet)
        for packet in stream.encode():
            output.mux(packet)
    return buffer.getvalue()


class Web:
    """A web server of this machine: `paths` has what is answered, as bytes or by a function of the handler."""

    def __init__(self) -> None:
        self.paths: dict[str, bytes | Callable[[Any], None]] = {}
        self.asked: list[str] = []
        self.hosts: list[str] = []
        self.port = 0

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@contextmanager
def serving(web: Web, context: ssl.SSLContext | None = None) -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.asked.append(self.path)
            web.hosts.append(self.headers["Host"])
            found = web.paths.get(self.path)
            if callable(found):
                found(self)
                return
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that refuses a certificate, or hangs up, is what tests want."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    web.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web()) as server:
        yield server


@pytest.fixture
def secure_web(tmp_path: Path) -> Iterator[tuple[Web, Path]]:
    """The same over TLS, with the certificate that the server made for itself, for the name localhost alone."""
    certificate = tmp_path / "self-made.pem"
    certificate.write_bytes(_self_signed("localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(Web(), context) as server:
        yield server, certificate


def _self_signed(name: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    with object_stores.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azure_server() -> Iterator[str]:
    with object_stores.azurite() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_server: str) -> tuple[Bucket, Workspace, dict[str, str]]:
    """A bucket, the workspace that names it, and the variables that its credentials refer to."""
    bucket = object_stores.s3_bucket(s3_server, f"media-{uuid4().hex[:12]}")
    named = {"access_key": "env:WORKSPACE_ACCESS", "secret_key": "env:WORKSPACE_SECRET"}
    workspace = Workspace(bucket.root, endpoint=s3_server, credentials=named)
    return bucket, workspace, {"WORKSPACE_ACCESS": "testing", "WORKSPACE_SECRET": bucket.secret}


@pytest.fixture
def azure(azure_server: str) -> tuple[Bucket, Workspace, dict[str, str]]:
    bucket = object_stores.az_bucket(azure_server, f"media-{uuid4().hex[:12]}")
    named = {"account_key": "env:WORKSPACE_KEY"}
    workspace = Workspace(bucket.root, endpoint=azure_server, account=AZURE_ACCOUNT, credentials=named)
    return bucket, workspace, {"WORKSPACE_KEY": bucket.secret}
