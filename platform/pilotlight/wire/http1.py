"""Fast, strict parser of plain HTTP/1.1 request heads, and response heads. Knows bytes, not models.

`parse_head` accepts only what leaves nothing to interpret. For anything else it returns None, and a full HTTP
implementation parses the same bytes: two parsers never disagree on where a request ends.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview

MAX_HEAD: Final = 8192
END: Final = b"\r\n\r\n"

_HEAD: Final = re.compile(
    rb"(GET|POST|HEAD|PUT|DELETE|PATCH|OPTIONS) (/[\x21-\x7e]*) HTTP/1\.1"
    rb"((?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[ \t]*[\x20-\x7e\t\x80-\xff]*)*)"
)
_ID: Final = b"\r\nX-Request-Id: "
_VALUE: Final = re.compile(rb"[\x20-\x7e\t\x80-\xff]*")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
# These need more than a body with content-length and one response.
_UNSUPPORTED: Final = frozenset({"transfer-encoding", "upgrade", "expect", "te", "trailer"})
_REASONS: Final = {
    200: "OK", 202: "Accepted", 302: "Found", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 413: "Content Too Large",
    422: "Unprocessable Content",
    429: "Too Many Requests", 431: "Request Header Fields Too Large", 499: "Client Closed Request",
    500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip


class PlainRequestHead(NamedTuple):
    """Request head; header names in lower case, `length` of the body in bytes."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int
    keep_alive: bool


def parse_head(head: bytes) -> PlainRequestHead | None:
    """Parse a head without its final empty line. None: leave it to the full parser."""
    at = head.rfind(_ID)
    if at < 0:
        return _parse(head)
    value = head[at + len(_ID) :]
    if _VALUE.fullmatch(value) is None:
        return _parse(head)
    # The gateway appends a request id as the last header; the bytes before it repeat, so their parse is cached.
    cached = _cached_parse(head[:at])
    if cached is None or "x-request-id" in cached.headers:
        return None
    method, path, query, before, length, keep_alive = cached
    headers = {**before, "x-request-id": value.decode("latin-1").strip(" \t")}
    return PlainRequestHead(method, path, query, headers, length, keep_alive)


def _parse(head: bytes) -> PlainRequestHead | None:
    match = _HEAD.fullmatch(head)
    if match is None:
        return None
    headers: dict[str, str] = {}
    for line in match[3].decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name = name.lower()
        if name in headers or name in _UNSUPPORTED:
            return None
        headers[name] = value.strip(" \t")
    length = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length) or "host" not in headers:
        return None
    connection = headers.get("connection", "keep-alive").lower()
    if connection not in {"keep-alive", "close"}:
        return None
    path, _, query = match[2].decode("ascii").partition("?")
    return PlainRequestHead(match[1].decode("ascii"), path, query, headers, int(length), connection == "keep-alive")


_cached_parse: Final = lru_cache(128)(_parse)


def render_head(status: int, content_type: str, length: int, headers: dict[str, str] | None, close: bool) -> bytes:
    """Return a response head. Line breaks in header values are replaced, so values cannot add headers."""
    if not headers:
        return _bare_head(status, content_type, length, close)
    extra = "".join(f"{name}: {_one_line(value)}\r\n" for name, value in headers.items())
    return _plain_head(status, content_type, length, close) + extra.encode("latin-1", "replace") + b"\r\n"


def render_chunked_head(status: int, content_type: str, headers: dict[str, str] | None, close: bool) -> bytes:
    """Return the head of a response whose length is not known: its body is sent in chunks."""
    extra = "".join(f"{name}: {_one_line(value)}\r\n" for name, value in (headers or {}).items())
    closing = "Connection: close\r\n" if close else ""
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\nContent-Type: {content_type}\r\n"
        f"Transfer-Encoding: chunked\r\n{closing}{extra}\r\n"
    ).encode("latin-1", "replace")


@lru_cache(4096)
def _bare_head(status: int, content_type: str, length: int, close: bool) -> bytes:
    return _plain_head(status, content_type, length, close) + END[2:]


@lru_cache(4096)
def _plain_head(status: int, content_type: str, length: int, close: bool) -> bytes:
    # Responses of one model have few lengths, so most heads come from the cache.
    closing = "Connection: close\r\n" if close else ""
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {length}\r\n{closing}"
    ).encode("latin-1")


def _one_line(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ") if "\r" in value or "\n" in value else value
