"""Small HTTP clients: a blocking one for sequential requests to one address, an asyncio one for local replicas.

Errors of the blocking one are those of the library (FAILURES, TimeoutError among them); callers word their messages.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

from pilotlight.wire import unix_socket

FAILURES: Final = (OSError, HTTPException)
PROXY_CLOSES_S: Final = 0.05
MAX_RESPONSE_BYTES: Final = 16 << 20
# Of a JSON document, which decode in 0.1, 0.1 and 0.4 s.
MAX_CONTAINERS, MAX_KEYS, MAX_VALUES = 100_000, 200_000, 4_000_000
Json = Any


def check_json(text: bytes) -> None:
    """Raise ValueError for a document that holds the interpreter for long: 60 MiB of `[],` decode in half a minute."""
    if text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
        raise ValueError(f"JSON has more than {MAX_CONTAINERS} lists and objects")
    if text.count(b":") > MAX_KEYS or text.count(b",") > MAX_VALUES:
        raise ValueError(f"JSON has more than {MAX_KEYS} keys, or {MAX_VALUES} values")


def decode_json(text: bytes) -> Json:
    """Decode a document of a server that is not trusted. Raise ValueError, also after `check_json`."""
    check_json(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


@dataclass(frozen=True, slots=True)
class HttpReply:
    """`headers` have lower-case names; `seconds` from the first byte sent to the last one received."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    reason: str = ""


class ResponseTooLong(HTTPException):
    """A response above the client's `max_bytes`."""


class _UnixConnection(HTTPConnection):
    """Connection to the socket of a `unix:` URL."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._url = url

    def connect(self) -> None:
        self.sock = unix_socket.connect(*unix_socket.split_url(self._url))
        self.sock.settimeout(self.timeout)


class HttpClient:
    """Keep-alive HTTP client of an http:, https: or unix: URL. `headers` are sent with every request.

    `timeout_s` without a byte; `max_bytes` of a response and `total_s` of a request, None: no limit.
    """

    def __init__(
        self, url: str, timeout_s: float, headers: Mapping[str, str] | None = None, max_bytes: int | None = None,
        total_s: float | None = None,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        kind: Callable[..., HTTPConnection] = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self.address, self._path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        if unix_socket.is_unix(url):
            kind, self.address, self._path = _UnixConnection, url, ""
        self._connection = kind(self.address, timeout=timeout_s)
        self._headers, self._max_bytes, self._total_s = dict(headers or {}), max_bytes, total_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def connect(self) -> None:
        """Connect before the first request, to distinguish a refused connection from a missing response."""
        self._connection.connect()

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> HttpReply:
        """Send a request; `path` is relative to the URL. After a failure the next request reconnects."""
        begin = time.monotonic()
        timer = threading.Timer(self._total_s, self._shut_down) if self._total_s is not None else None
        try:
            if timer is not None:
                timer.start()
            self._connection.request(method, self._path + path, body or None, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
            content = response.read(None if self._max_bytes is None else self._max_bytes + 1)
            if self._max_bytes is not None and len(content) > self._max_bytes:
                raise ResponseTooLong(f"the response has more than {self._max_bytes} bytes")
        except FAILURES:
            self._connection.close()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpReply(response.status, response_headers, content, time.monotonic() - begin, response.reason)

    def _shut_down(self) -> None:
        """End a request that drips: each of its bytes comes in time."""
        with suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)


class LoopbackResponse(NamedTuple):
    """HTTP response; `status` 0: timeout, connection failure, or not HTTP."""

    status: int
    body: bytes = b""
    chunked: bool = False  # the body still has its chunks

    @property
    def ok(self) -> bool:
        """Whether a Kubernetes HTTP probe would succeed."""
        return 200 <= self.status < 400

    def json(self) -> dict[str, Json]:
        with suppress(ValueError):
            document = json.loads(self.body)
            if isinstance(document, dict):
                return document
        return {}


async def request(
    port: int, path: str, timeout_s: float, *, host: str = "127.0.0.1", post: bool = False, token: str = "",
    body: bytes = b"",
) -> LoopbackResponse:  # fmt: skip
    """Send a GET, or a POST of a JSON `body`, to a port of this machine or of a `unix:` host. Never raises."""
    post = post or bool(body)
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    kind = "Content-Type: application/json\r\n" if body else ""
    extra = f"{bearer}{kind}Content-Length: {len(body)}\r\n" if post else bearer
    try:
        async with asyncio.timeout(timeout_s):
            return await send_request(host, port, path, method="POST" if post else "GET", extra=extra, body=body)
    except (OSError, TimeoutError, ValueError):
        return LoopbackResponse(0)


async def accepts_connections(port: int, timeout_s: float, *, host: str = "127.0.0.1") -> bool:
    """Whether a server listens on a port of a host or of a `unix:` host. Never raises."""
    try:
        async with asyncio.timeout(timeout_s):
            with await connect(host, port) as connection:
                return unix_socket.is_unix(host) or not await _closes(connection)
    except OSError:  # TimeoutError is one
        return False


async def _closes(connection: socket.socket) -> bool:
    """Whether the peer closes at once, as docker-proxy and ssh do, which listen before the server behind them does."""
    try:
        async with asyncio.timeout(PROXY_CLOSES_S):
            return not await asyncio.get_running_loop().sock_recv(connection, 1)
    except TimeoutError:
        return False


async def send_request(
    host: str, port: int, path: str, *, method: str = "GET", extra: str = "", body: bytes = b""
) -> LoopbackResponse:
    """Send one request on a connection of its own, so that none stays open to a draining replica.

    Raise OSError if the connection fails, ValueError for an invalid response.
    """
    with await connect(host, port) as connection:
        name = "localhost" if connection.family == socket.AF_UNIX else f"{host}:{port}"
        request = f"{method} {path} HTTP/1.1\r\nHost: {name}\r\n{extra}Connection: close\r\n\r\n"
        return await exchange(connection, request.encode("latin-1") + body)


async def exchange(connection: socket.socket, request: bytes) -> LoopbackResponse:
    """Send a request that closes its connection; return the response. Raise as `send_request`."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, request)
    answer = bytearray()
    while len(answer) < MAX_RESPONSE_BYTES and not _complete(answer):
        piece = await loop.sock_recv(connection, 65536)
        if not piece:
            break
        answer += piece
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1."):
        raise ValueError("no HTTP response")
    return LoopbackResponse(int(head[9:12]), body, b"\r\ntransfer-encoding: chunked" in head.lower())


async def connect(host: str, port: int) -> socket.socket:
    if unix_socket.is_unix(host):
        return unix_socket.connect(host, port)
    connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return connection


def _complete(answer: bytearray) -> bool:
    """Whether a body with a Content-Length is complete; without one it ends with the connection."""
    head, end, body = bytes(answer).partition(b"\r\n\r\n")
    _, named, rest = head.lower().partition(b"\r\ncontent-length:")
    return bool(end and named) and len(body) >= int(rest.split(b"\r\n", 1)[0])
