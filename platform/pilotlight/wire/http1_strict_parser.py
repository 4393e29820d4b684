"""Strict parser of HTTP/1.1 heads and bodies for the proxy; anything ambiguous is rejected against request smuggling.

`http1.parse_head` is the fast parser of plain requests. This one serves the gateway, which must know for every message
where it ends and which headers are hop-by-hop.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

MAX_HEAD: Final = 1 << 16
CHUNKED: Final = -1  # length of a chunked body
UNTIL_CLOSE: Final = -2  # length of a body that ends with the connection

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\x20-\x7e\t\x80-\xff]*)?")
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"+):[ \t]*([\x20-\x7e\t\x80-\xff]*)")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_SINGLETON: Final = frozenset({"content-length", "transfer-encoding", "host"})
# Bodies are forwarded with their framing, so transfer-encoding and trailer are not in this list.
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade"})
# `Connection: authorization` must not remove credentials, nor what a proxy in front has set.
_NEVER_DROPPED: Final = _SINGLETON | {"authorization", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"}
# 15 digits exceed any memory. Extensions pass, but no byte that another parser could take for a line end (smuggling).
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\x20-\x7e\t]*)?")
_TRAILER: Final = re.compile(_TOKEN + rb"+:[\x20-\x7e\t\x80-\xff]*")
_TINY: Final = 15
# Run of whole chunks of up to 15 bytes, which costs a twentieth of reading them line by line.
_TINY_CHUNK: Final = rb"%x(?:[ \t]{0,9};[\x20-\x7e\t]{0,99})?\r\n[\x00-\xff]{%d}\r\n"
_TINY_CHUNKS: Final = re.compile(
    rb"(?:0{0,14}(?:%b))+" % b"|".join(_TINY_CHUNK % (size, size) for size in range(1, _TINY + 1))
)
_MAX_LINE: Final = 4096
_MAX_TRAILERS: Final = 1 << 14


class Malformed(Exception):
    """Bytes that are no HTTP message; `status` is the status of the response."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class HeaderLine(NamedTuple):
    """Header line: lower-case name, value, and the raw bytes."""

    name: str
    value: str
    raw: bytes


class RequestHead(NamedTuple):
    method: str
    target: str
    minor: int  # of HTTP/1.x
    lines: tuple[HeaderLine, ...]
    headers: dict[str, str]  # repeated ones joined
    length: int  # of the body, or CHUNKED
    keep_alive: bool
    upgrade: bool


class ResponseHead(NamedTuple):
    """Response head; `plain` without hop-by-hop headers, `lowered` in lower case."""

    status: int
    length: int  # as the headers say, or CHUNKED, or UNTIL_CLOSE
    keep_alive: bool
    plain: bool
    lowered: bytes


def parse_request(head: bytes) -> RequestHead:
    """Parse a head without its final empty line. Raise Malformed."""
    first, *rest = head.split(b"\r\n")
    match = REQUEST_LINE.fullmatch(first)
    if match is None:
        raise Malformed("the request line is malformed; send METHOD, target and HTTP/1.1 with one space between them")
    lines, minor = _parse_lines(rest), int(match[3])
    headers = _join(lines)
    if minor and "host" not in headers:
        raise Malformed("the Host header is missing; HTTP/1.1 requires it")
    options = _split(headers.get("connection", ""))
    keep_alive = minor == 1 and "close" not in options
    upgrade = minor == 1 and "upgrade" in options and "upgrade" in headers
    length = _request_length(headers, minor)
    return RequestHead(match[1].decode(), match[2].decode(), minor, lines, headers, length, keep_alive, upgrade)


def parse_response(head: bytes) -> ResponseHead:
    """Parse a head without its final empty line. Raise Malformed."""
    lowered = head.lower()
    # Fast path: responses of our predictor have one content-length and no hop-by-hop header.
    at = lowered.find(b"\r\ncontent-length: ")
    if at > 0 and head.startswith(b"HTTP/1.1 ") and not _needs_full_parse(lowered):
        end = lowered.find(b"\r\n", at + 18)
        digits = lowered[at + 18 : end if end > 0 else None]
        if digits.isdigit() and len(digits) < 16 and head[9:12].isdigit():
            return ResponseHead(int(head[9:12]), int(digits), True, True, lowered)
    return _parse_any_response(head, lowered)


def _needs_full_parse(lowered: bytes) -> bool:
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
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise Malformed("the status line is malformed")
    headers = _join(_parse_lines(rest))
    options = _split(headers.get("connection", ""))
    keep_alive = match[1] == b"1" and "close" not in options
    return ResponseHead(int(match[2]), _response_length(headers), keep_alive, False, lowered)


def end_to_end_headers(lines: Iterable[HeaderLine], upgrade: bool = False) -> list[HeaderLine]:
    """Return the end-to-end headers; with `upgrade`, the connection and upgrade headers as well."""
    lines = tuple(lines)
    named = {option for line in lines if line.name == "connection" for option in _split(line.value)}
    dropped = (_HOP_BY_HOP | named) - _NEVER_DROPPED
    upgrade_headers = {"connection", "upgrade"} if upgrade else set()
    return [line for line in lines if line.name in upgrade_headers or line.name not in dropped]


def response_lines(head: bytes) -> tuple[bytes, tuple[HeaderLine, ...]]:
    """Return status line and headers of a head that parse_response has accepted."""
    first, *rest = head.split(b"\r\n")
    return first, _parse_lines(rest)


def _parse_lines(rest: list[bytes]) -> tuple[HeaderLine, ...]:
    lines = []
    for raw in rest:
        match = _FIELD.fullmatch(raw)
        if match is None:
            raise Malformed("a header line is malformed; send `name: value`, unfolded, each line ended by CR LF")
        lines.append(HeaderLine(match[1].decode().lower(), match[2].decode("latin-1").rstrip(" \t"), raw))
    return tuple(lines)


def _join(lines: tuple[HeaderLine, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value, _ in lines:
        if name not in headers:
            headers[name] = value
        elif name in _SINGLETON:
            raise Malformed(f"the header {name} is sent twice; send it once")
        else:
            headers[name] = f"{headers[name]}, {value}"
    return headers


def _split(value: str) -> set[str]:
    return {option.strip(" \t").lower() for option in value.split(",")}


def _request_length(headers: dict[str, str], minor: int) -> int:
    if "transfer-encoding" in headers:
        if "content-length" in headers or not minor:
            raise Malformed(
                "the header transfer-encoding cannot be combined with content-length, nor used in HTTP/1.0; send one"
            )
        if headers["transfer-encoding"].lower() != "chunked":
            raise Malformed("the header transfer-encoding names a coding other than chunked; send chunked alone", 501)
        return CHUNKED
    length = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length):
        raise Malformed("the header content-length is not a number; send the body's length in bytes, in digits")
    return int(length)


def _response_length(headers: dict[str, str]) -> int:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (length is not None or coding.lower() != "chunked"):
        raise Malformed("the response's framing is ambiguous")
    if coding is not None:
        return CHUNKED
    if length is None:
        return UNTIL_CLOSE
    if not _LENGTH.fullmatch(length):
        raise Malformed("the response's length is not a number")
    return int(length)


class BodyReader(Protocol):
    """Finds where a body ends while its bytes pass through."""

    @property
    def done(self) -> bool: ...

    def feed(self, data: bytes) -> int:
        """Return how many of the bytes belong to the body. Raise Malformed."""


def new_body(length: int) -> BodyReader:
    """Return the reader of a body; `length` is a number of bytes, CHUNKED or UNTIL_CLOSE."""
    if length == CHUNKED:
        return ChunkedBody()
    return UntilCloseBody() if length == UNTIL_CLOSE else ContentLengthBody(length)


class ContentLengthBody:
    __slots__ = ("left",)

    def __init__(self, length: int) -> None:
        self.left = length

    @property
    def done(self) -> bool:
        return self.left == 0

    def feed(self, data: bytes) -> int:
        used = min(self.left, len(data))
        self.left -= used
        return used


class UntilCloseBody:
    done = False

    def feed(self, data: bytes) -> int:
        return len(data)


class ChunkedBody:
    """Chunked body with trailers. With `collect`, the payload of the chunks is stored for `take_payload`."""

    __slots__ = ("_left", "_line", "_pieces", "_state", "_tiny", "_trailers", "done")

    def __init__(self, collect: bool = False) -> None:
        self.done = False
        self._state = "size"  # size -> data -> end (CR LF) -> size ..., after the last chunk trailers
        self._left = 0
        self._line = b""  # incomplete line of the previous call
        self._tiny = False  # the last chunk was tiny: there may be a million of them
        self._trailers = 0
        self._pieces: list[bytes] | None = [] if collect else None

    def feed(self, data: bytes) -> int:
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._tiny and self._state == "size" and not self._line and self._pieces is None:
                run = _TINY_CHUNKS.match(data, at)
                at, self._tiny = run.end() if run else at, False
                continue
            at = self._data(data, at) if self._state == "data" else self._read_line(data, at)
        return at

    @property
    def collecting(self) -> bool:
        return self._pieces is not None

    def take_payload(self) -> bytes:
        """Return the payload of the chunks since the last call."""
        assert self._pieces is not None
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def _data(self, data: bytes, at: int) -> int:
        used = min(self._left, len(data) - at)
        if self._pieces is not None:
            self._pieces.append(data[at : at + used])
        self._left -= used
        if not self._left:
            self._state = "end"
        return at + used

    def _read_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        line = self._line + data[at : end + 1 if end >= 0 else None]
        if len(line) > _MAX_LINE:
            raise Malformed("a line between chunks is too long")
        if end < 0:
            self._line = line
            return len(data)
        self._line = b""
        if not line.endswith(b"\r\n"):
            raise Malformed("a line between chunks does not end with CR LF")
        self._on_line(line[:-2])
        return end + 1

    def _on_line(self, line: bytes) -> None:
        if self._state == "size":
            size = _SIZE.fullmatch(line)
            if size is None:
                raise Malformed("the size of a chunk is not a hexadecimal number")
            self._left = int(size[1], 16)
            self._tiny = self._left <= _TINY
            self._state = "data" if self._left else "trailers"
        elif self._state == "end":
            if line:
                raise Malformed("a chunk is longer than its size")
            self._state = "size"
        elif not line:
            self.done = True
        else:
            self._trailers += len(line)
            if self._trailers > _MAX_TRAILERS or not _TRAILER.fullmatch(line):
                raise Malformed("a trailer is malformed or too long")


def unchunked(body: bytes) -> bytes:
    """Return the payload of a chunked body. Raise Malformed."""
    reader = ChunkedBody(collect=True)
    reader.feed(body)
    return reader.take_payload()
