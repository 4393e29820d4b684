"""State of a client and the exchange of one request, without IO: what is sent, when it is retried, errors.

Operations are generators: they yield a `Request` or a `Pause`, get the `Reply`, and return their result. A driver of
clients.py runs them on a blocking transport or on asyncio. Transports raise `NotSent` and `Lost`.
"""

import json
import random
import re
import struct
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pilotlight.client.errors import ColdStartTimeout, ConnectionFailed, DeadlineExceeded, InvalidInput, ResponseError
from pilotlight.contract import HEADER_COLD_START, HEADER_HOLD_TIMEOUT
from pilotlight.errors import PlatformError
from pilotlight.v2_tensors import InputSpec, Memory
from pilotlight.wire.http_client import decode_json
from pilotlight.wire.unix_socket import is_unix

T = TypeVar("T")
FIRST_PAUSE_S: Final = 0.2  # after a failed connection; doubled each time
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0  # that a server's Retry-After sets
MAX_TIMEOUT_S: Final = 1e6  # sockets take no more than 24 days
MAX_UNPACKED: Final = 1 << 30  # bytes of a gzipped response
UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error, zlib.error)
# Of the server while it starts: KServe's and Triton's 503, ours, and 202 of a microservice.
BUSY: Final = (202, 429, 503)
STARTING: Final = ("initializing", "loading", "not ready", "not loaded", "starts again", "looking for its models")
HOLD_SHARE: Final = 0.9  # of the time left: the gateway's own answer comes before the client gives up


class NotSent(Exception):
    """No connection came about, so nothing of the request was sent."""


class Lost(Exception):
    """The connection failed after some of the request may have been sent."""


class Request(NamedTuple):
    """`path` is absolute; `deadline` by the monotonic clock. `stream`: return as soon as the head of a 200 is there."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Sequence[Memory]
    deadline: float
    stream: bool = False


class Pause(NamedTuple):
    seconds: float


class Reply(NamedTuple):
    """`headers` are read by lower-case names; `chunks` is the open body of a stream, an iterator of the transport."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    chunks: Any = None


Operation = Generator[Request | Pause, Any, T]


@dataclass(slots=True)
class Session:
    """Settings of a client, and what it knows of the server's models."""

    url: str
    path: str  # before the path of every request
    headers: Mapping[str, str]
    timeout: float
    retries: int
    binary: bool
    inputs: dict[tuple[str, str], list[InputSpec]]
    model: str = ""  # the only one of the server, once it is known

    def call(self, timeout: float | None) -> "Call":
        return Call(self, self.timeout if timeout is None else timeout)


def session_of(
    url: str, *, token: str | None, timeout: float, retries: int, headers: Mapping[str, str] | None, binary: bool
) -> Session:
    """Check the arguments of a client. Raise InvalidInput."""
    parts = urlsplit(url)
    if not is_unix(url) and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InvalidInput(f"the URL {url!r} has no scheme and host; write it as http://HOST:PORT/SERVICE")
    if "@" in parts.netloc:
        raise InvalidInput("the URL holds credentials; pass them as token= or headers=")
    if not is_unix(url) and not re.fullmatch("[!-~]+", url):
        raise InvalidInput(f"the URL {url!r} has characters other than ASCII's; write them as %XX")
    path = "" if is_unix(url) else parts.path.rstrip("/").removesuffix("/v1").removesuffix("/v2")
    sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
    if broken := [name for name, value in sent.items() if not re.fullmatch("[ -~]*", f"{name}{value}")]:
        raise InvalidInput(f"the header {broken[0]!r} has a line break or another character that is not ASCII's")
    return Session(url, path, sent, timeout, retries, binary, {})


class Call:
    """One call of a user: its deadline, and what it has met so far. `cold_start_s` is 0 for a server that was there."""

    __slots__ = ("_clock", "_session", "_starting", "_timeout", "began", "cold_start_s")

    def __init__(self, session: Session, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 < timeout <= MAX_TIMEOUT_S:
            raise InvalidInput(f"timeout is {timeout:g}, must be more than 0 seconds, at most {MAX_TIMEOUT_S:g}")
        self._session, self._timeout, self._clock = session, timeout, clock
        self.began = clock()
        self.cold_start_s = 0.0
        self._starting = ""  # the last words of a server that starts

    def get(self, path: str) -> Operation[Reply]:
        return self.exchange("GET", path)

    def post_json(self, path: str, document: Mapping[str, Any], *, stream: bool = False) -> Operation[Reply]:
        body = [json.dumps(document, ensure_ascii=False).encode()]
        return self.exchange("POST", path, body, {"Content-Type": "application/json"}, stream=stream)

    def exchange(
        self, method: str, path: str, body: Sequence[Memory] = (), headers: Mapping[str, str] | None = None, *,
        stream: bool = False,
    ) -> Operation[Reply]:  # fmt: skip
        """Send a request until it is answered, the deadline passes, or a retry might execute it twice."""
        failures, deadline, target = 0, self.began + self._timeout, self._session.path + path
        while True:
            sent = {HEADER_HOLD_TIMEOUT: self._hold(), **self._session.headers, **(headers or {})}
            try:
                reply: Reply = yield Request(method, target, sent, body, deadline, stream)
            except (NotSent, Lost, TimeoutError) as error:
                repeatable = isinstance(error, NotSent) or (isinstance(error, Lost) and method == "GET")
                if not repeatable or failures >= self._session.retries:
                    raise self.failure(error) from None
                pause = FIRST_PAUSE_S * 2**failures * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, no secret
            else:
                reply = _decompressed(reply)
                if reply.status not in BUSY or "retry-after" not in reply.headers or failures >= self._session.retries:
                    self._count_cold_start(reply)
                    return reply
                pause = self._busy(reply)
                failures -= bool(self._starting)  # a start is waited for until the deadline
            failures += 1
            if pause >= self._left():
                raise self._deadline_exceeded()
            yield Pause(pause)

    def failure(self, error: Exception) -> PlatformError:
        """Return the error of a call that a transport ended with TimeoutError, NotSent or Lost."""
        if isinstance(error, TimeoutError):
            return self._deadline_exceeded()
        doubt = "; the server may have executed the request, so it is not retried" if isinstance(error, Lost) else ""
        return ConnectionFailed(f"{self._session.url}: {error}{doubt}")

    def _hold(self) -> str:
        """Return how long the gateway may hold the request; equal for most calls, since it caches whole heads."""
        left = self._left()
        return f"{HOLD_SHARE * (self._timeout if left > 0.95 * self._timeout else left):.3g}"

    def _left(self) -> float:
        return max(self.began + self._timeout - self._clock(), 0.001)

    def _count_cold_start(self, reply: Reply) -> None:
        held = reply.headers.get(HEADER_COLD_START, "")
        if held.isdecimal():
            self.cold_start_s += float(held) / 1000
        elif self._starting:
            self.cold_start_s = self._clock() - self.began
        self._starting = ""

    def _busy(self, reply: Reply) -> float:
        """Return the pause that the server demands, and remember its words if it is starting."""
        words = error_message(reply)
        starts = reply.status == 202 or HEADER_COLD_START in reply.headers or any(each in words for each in STARTING)
        self._starting = words if starts else ""
        after = reply.headers["retry-after"]
        return min(max(float(after), MIN_PAUSE_S), MAX_PAUSE_S) if after.isdecimal() else 1.0

    def _deadline_exceeded(self) -> DeadlineExceeded:
        waited, url = self._clock() - self.began, self._session.url
        if self._starting:
            text = f"{url}: still starting after {waited:.1f} s, the deadline of this call ({self._starting})"
            return ColdStartTimeout(f"{text}; a cold start may need a longer timeout=", waited)
        return DeadlineExceeded(f"{url}: no response within {waited:.1f} s, the deadline of this call", waited)


def _decompressed(reply: Reply) -> Reply:
    if reply.headers.get("content-encoding") != "gzip" or reply.chunks is not None:
        return reply
    with reading("gzip"):
        unpacker = zlib.decompressobj(wbits=31)
        body = unpacker.decompress(reply.body, MAX_UNPACKED)
        if not unpacker.eof:
            raise ValueError(f"it is cut off, or has more than {MAX_UNPACKED} bytes")
    return reply._replace(body=body)


@contextmanager
def reading(subject: str) -> Iterator[None]:
    """Raise ResponseError where a response is not what its protocol says, whatever Python calls that."""
    try:
        yield
    except UNREADABLE as error:
        raise ResponseError(f"{subject}: the response cannot be read: {error}", 200, str(error)) from None


def document_of(reply: Reply, subject: str, hint: str = "") -> dict[str, Any]:
    """Return the JSON object of a successful reply. Raise ResponseError."""
    if reply.status != 200:
        raise response_error(reply, subject, hint)
    with reading(subject):
        document = decode_json(reply.body)
        if isinstance(document, dict):
            return document
        raise ValueError(f"not a JSON object: {error_message(reply)}")


def response_error(reply: Reply, subject: str, hint: str = "") -> ResponseError:
    words, fix = error_message(reply), "pass the service's token as token=" if reply.status == 401 else hint
    message = f"{subject}: the server returned {reply.status}: {words}{fix and f'; {fix}'}"
    return ResponseError(message, reply.status, words)


def error_message(reply: Reply) -> str:
    """Return the error of a body in the forms of V2, OpenAI and FastAPI, else the body's beginning."""
    try:
        document = decode_json(reply.body)
    except ValueError:
        return reply.body[:200].decode(errors="replace") or "an empty body"
    error = document.get("error", document.get("detail", document)) if isinstance(document, dict) else document
    return str(error.get("message", error) if isinstance(error, dict) else error)
