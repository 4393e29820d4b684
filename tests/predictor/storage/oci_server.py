"""A registry on loopback: the pull side of OCI distribution v2 with token authentication, and what builds artifacts."""

import base64
import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
LOGIN = "reader:open sesame"


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def tar(files: Mapping[str, bytes] | None = None, *members: tarfile.TarInfo, packed: bool = False) -> bytes:
    """A tar of files, then of members without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, body in (files or {}).items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
        for member in members:
            archive.addfile(member)
    return gzip.compress(buffer.getvalue()) if packed else buffer.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@dataclass
class Registry:
    login: str = ""  # user:password that tokens are given for; empty: for everybody
    basic: bool = False  # no tokens: the login itself
    token_uses: int = 10**9  # requests until a token expires
    ranges: bool = True
    realm: str = ""  # instead of its own
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    redirects: bool = False  # blobs come from another origin
    cdn_refuses: bool = False  # that origin asks for credentials of its own
    tokens: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    port: int = 0
    cdn_port: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def uri(self, reference: str) -> str:
        return f"oci+fetch://{self.host}/{reference}"

    def paths(self, part: str) -> list[str]:
        return [path for path, _ in self.requests if part in path]

    def layer(self, media: str, body: bytes, **annotations: str) -> dict[str, Any]:
        self.blobs[digest_of(body)] = body
        notes = {name.replace("__", "."): value for name, value in annotations.items()}
        return {"mediaType": media, "digest": digest_of(body), "size": len(body), "annotations": notes}

    def push(self, reference: str, layers: list[Any], config: str = "application/vnd.oci.empty.v1+json") -> str:
        """Store a manifest under `repository:tag`; returns its digest."""
        settings = self.layer(config, b"{}")
        return self.put(reference, MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST, "config": settings,
                                              "layers": layers})  # fmt: skip

    def put(self, reference: str, media: str, document: Any) -> str:
        repository, _, tag = reference.partition(":")
        body = json.dumps(document).encode()
        for name in (tag, digest_of(body)):
            self.manifests[f"/v2/{repository}/manifests/{name}"] = (media, body)
        return digest_of(body)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry
    cdn: bool

    def log_message(self, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        registry, path = self.registry, urlsplit(self.path).path
        with registry.lock:
            seen = {name.lower(): value for name, value in self.headers.items()}
            registry.requests.append((f"{'cdn' if self.cdn else ''}{self.path}", seen))
        if path == "/token":
            self._token()
        elif self.cdn and registry.cdn_refuses:
            realm = f"http://127.0.0.1:{registry.cdn_port}/token"
            self._answer(401, b"{}", {"WWW-Authenticate": f'Bearer realm="{realm}",service="test"'})
        elif not self.cdn and not self._admitted():
            own = f'Bearer realm="{registry.realm or f"http://{registry.host}/token"}",service="test"'
            self._answer(401, b"{}", {"WWW-Authenticate": 'Basic realm="x"' if registry.basic else own})
        elif path in registry.manifests:
            media, body = registry.manifests[path]
            self._answer(200, body, {"Content-Type": media, "Docker-Content-Digest": digest_of(body)})
        elif (name := path.rpartition("/")[2]) in registry.blobs and "/blobs/" in path:
            if registry.redirects and not self.cdn:
                self._answer(307, b"", {"Location": f"http://127.0.0.1:{registry.cdn_port}{path}?signed"})
            else:
                self._blob(registry.blobs[name])
        else:
            self._answer(404, b"{}", {})

    def _token(self) -> None:
        registry = self.registry
        query = parse_qs(urlsplit(self.path).query)
        if registry.login and self.headers.get("Authorization") != _basic(registry.login):
            self._answer(401, b"{}", {})
        elif query["service"] != ["test"] or not query["scope"][0].endswith(":pull"):
            self._answer(400, b"{}", {})
        else:
            with registry.lock:
                token = f"token-{len(registry.tokens)}"
                registry.tokens[token] = registry.token_uses
            self._answer(200, json.dumps({"token": token, "expires_in": 60}).encode(), {})

    def _admitted(self) -> bool:
        registry, written = self.registry, self.headers.get("Authorization", "")
        if registry.basic:
            return written == _basic(registry.login)
        token = written.removeprefix("Bearer ")
        with registry.lock:
            registry.tokens[token] = registry.tokens.get(token, 0) - 1
            return registry.tokens[token] >= 0

    def _blob(self, body: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if self.registry.ranges else None
        if wanted is None:
            self._answer(200, body, {})
            return
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(body))
        self._answer(206, body[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def docker_config(host: str, login: str = LOGIN) -> str:
    return json.dumps({"auths": {host: {"auth": base64.b64encode(login.encode()).decode()}}})


@contextmanager
def serving(registry: Registry) -> Iterator[Registry]:
    servers = []
    for cdn in (False, True):
        handler = type("Handler", (_Handler,), {"registry": registry, "cdn": cdn})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.handle_error = lambda *args: None  # type: ignore[method-assign] - a client that hangs up
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
    registry.port, registry.cdn_port = (server.server_address[1] for server in servers)
    try:
        yield registry
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
