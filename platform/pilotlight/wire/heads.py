"""Heads of any HTTP/1.1 message, read in the one strict way: what leaves room for a second reading is refused.

`http1.parse_head` is the narrow reader for the commonest requests; this is the one of a proxy, which must know of every
message where it ends and which headers belong to this connection only.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_HEAD: Final = 1 << 16
CHUNKED: Final = -1  # a body in chunks, as its length
UNTIL_CLOSE: Final = -2  # a body that ends with the connection

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\x20-\x7e\t\x80-\xff]*)?")
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"+):[ \t]*([\x20-\x7e\t\x80-\xff]*)")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_ONCE: Final = frozenset({"content-length", "transfer-encoding", "host"})
# Theirs is this connection alone. Framing passes as it is, so what describes it passes too.
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade"})
# A client may call any header its connection's own; these it needs at the other end, or they were set by a proxy.
_NEVER_DROPPED: Final = _ONCE | {"authorization", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"}


class Malformed(Exception):
    """Bytes that are no message; `status` is the answer to them."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Line(NamedTuple):
    """A header: its name in lower case, its value, and the line as it came."""

    name: str
    value: str
    raw: bytes


class RequestHead(NamedTuple):
    method: str
    target: str
    minor: int  # of HTTP/1.x
    lines: tuple[Line, ...]
    headers: dict[str, str]  # repeated ones joined
    length: int  # of the body, or CHUNKED
    keep_alive: bool
    upgrade: bool


class ResponseHead(NamedTuple):
    """`plain` when no line of it is the connection's own; `lowered` is the head in lower case."""

    status: int
    length: int  # as the headers say, or CHUNKED, or UNTIL_CLOSE
    keep_alive: bool
    plain: bool
    lowered: bytes


def parse_request(head: bytes) -> RequestHead:
    """`head` ends before the empty line."""
    first, *rest = head.split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise Malformed("the request line is malformed; send METHOD, target and HTTP/1.1 with one space between them")
    lines, minor = _lines(rest), int(found[3])
    headers = _joined(lines)
    if minor and "host" not in headers:
        raise Malformed("the Host header is missing; HTTP/1.1 requires it")
    options = _options(headers)
    keep_alive = minor == 1 and "close" not in options
    upgrade = minor == 1 and "upgrade" in options and "upgrade" in headers
    length = _request_length(headers, minor)
    return RequestHead(found[1].decode(), found[2].decode(), minor, lines, headers, length, keep_alive, upgrade)


def parse_response(head: bytes) -> ResponseHead:
    """`head` ends before the empty line. Answers of our own predictor take the short way."""
    lowered = head.lower()
    at = lowered.find(b"\r\ncontent-length: ")
    if at > 0 and head.startswith(b"HTTP/1.1 ") and not _odd(lowered):
        end = lowered.find(b"\r\n", at + 18)
        digits = lowered[at + 18 : end if end > 0 else None]
        if digits.isdigit() and len(digits) < 16 and head[9:12].isdigit():
            return ResponseHead(int(head[9:12]), int(digits), True, True, lowered)
    return _parse_any_response(head, lowered)


def _odd(lowered: bytes) -> bool:
    return (
        b"\r\nconnection:" in lowered
        or b"\r\ntransfer-encoding:" in lowered
        or b"\r\nupgrade:" in lowered
        or b"\r\nkeep-alive:" in lowered
        or lowered.count(b"\r\ncontent-length") > 1
        or lowered.count(b"\n") != lowered.count(b"\r\n")
    )


def _parse_any_response(head: bytes, lowered: bytes) -> ResponseHead:
    first, *rest = head.split(b"\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise Malformed("the status line is malformed")
    headers = _joined(_lines(rest))
    options = _options(headers)
    keep_alive = found[1] == b"1" and "close" not in options
    return ResponseHead(int(found[2]), _response_length(headers), keep_alive, False, lowered)


def passed_on(lines: Iterable[Line], upgrade: bool = False) -> list[Line]:
    """The headers without those that are this connection's own; an upgrade keeps what asks for it."""
    lines = tuple(lines)
    named = {option for line in lines if line.name == "connection" for option in _split(line.value)}
    dropped = (_HOP_BY_HOP | named) - _NEVER_DROPPED
    kept = {"connection", "upgrade"} if upgrade else set()
    return [line for line in lines if line.name in kept or line.name not in dropped]


def response_lines(head: bytes) -> tuple[bytes, tuple[Line, ...]]:
    """The status line and the headers of a head that was parsed before."""
    first, *rest = head.split(b"\r\n")
    return first, _lines(rest)


def _lines(rest: list[bytes]) -> tuple[Line, ...]:
    lines = []
    for raw in rest:
        found = _FIELD.fullmatch(raw)
        if found is None:
            raise Malformed("a header line is malformed; send `name: value`, unfolded, each line ended by CR LF")
        lines.append(Line(found[1].decode().lower(), found[2].decode("latin-1").rstrip(" \t"), raw))
    return tuple(lines)


def _joined(lines: tuple[Line, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value, _ in lines:
        if name not in headers:
            headers[name] = value
        elif name in _ONCE:
            raise Malformed(f"the header {name} is there twice; send it once")
        else:
            headers[name] = f"{headers[name]}, {value}"
    return headers


def _options(headers: dict[str, str]) -> set[str]:
    return _split(headers.get("connection", ""))


def _split(value: str) -> set[str]:
    return {option.strip(" \t").lower() for option in value.split(",")}


def _request_length(headers: dict[str, str], minor: int) -> int:
    if "transfer-encoding" in headers:
        return _chunked(headers, minor)
    length = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length):
        raise Malformed("the header content-length is no number; send the body's length in bytes, in digits")
    return int(length)


def _chunked(headers: dict[str, str], minor: int) -> int:
    if "content-length" in headers or not minor:
        raise Malformed("the header transfer-encoding cannot stand beside content-length, nor in HTTP/1.0; send one")
    if headers["transfer-encoding"].lower() != "chunked":
        raise Malformed("the header transfer-encoding names a coding other than chunked; send chunked alone", 501)
    return CHUNKED


def _response_length(headers: dict[str, str]) -> int:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (length is not None or coding.lower() != "chunked"):
        raise Malformed("the answer's framing is ambiguous")
    if coding is not None:
        return CHUNKED
    if length is None:
        return UNTIL_CLOSE
    if not _LENGTH.fullmatch(length):
        raise Malformed("the answer's length is no number")
    return int(length)
