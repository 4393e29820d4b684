"""Headers of a gRPC call: the request's HTTP/2 fields → CallHead, and HPACK header blocks of responses. Pure.

The connection caches heads and shares them between calls that repeat them, so they must not be changed.
"""

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from pilotlight.wire.http2.hpack import DEFAULT_TABLE, STATIC, HeaderField, indexed, literal

ENCODINGS: Final = ("identity", "gzip", "deflate")
ACCEPTED: Final = ",".join(ENCODINGS)
CONTENT_TYPES: Final = ("application/grpc", "application/grpc+proto")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
# Connection-specific fields, forbidden in HTTP/2 (RFC 9113, 8.2.2): signs of a request smuggled through HTTP/1.
_FORBIDDEN: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_OWN: Final = frozenset(
    {"te", "host", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "grpc-message-type"}
)
_LENGTH: Final = re.compile("[0-9]{1,18}")
_NO_VALUE: Final = frozenset("\0\r\n")
CODES: Final = {
    name: number
    for number, name in enumerate((
        "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
        "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
        "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
    ))
}  # fmt: skip
STATUS_200: Final = indexed(8)
TYPE: Final[HeaderField] = ("content-type", "application/grpc")
DONE: Final[HeaderField] = ("grpc-status", "0")
NEWEST: Final = len(STATIC)  # index of the newest entry of the dynamic table
KNOWN_HEAD: Final = STATUS_200 + indexed(NEWEST + 1)
KNOWN_DONE: Final = indexed(NEWEST)
MAX_MESSAGE: Final = 6000  # bytes: clients refuse metadata of 8 KiB
_NO_TABLE: Final = b"\x20"  # dynamic table size update to 0
_PARTIAL: Final = re.compile("%.?$")  # truncated escape
_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class CallHead:
    """Call headers. `malformed`: no HTTP/2 request; `http_status` not 200: no gRPC call; `code` set: call rejected."""

    __slots__ = (
        "accepted", "code", "encoding", "handler", "headers", "http_status", "length", "malformed", "path", "problem",
        "response_encoding", "timeout",
    )  # fmt: skip

    def __init__(self) -> None:
        self.path, self.headers = "", {"host": "localhost"}
        self.timeout: float | None = None
        self.length: int | None = None  # content-length, which few clients send
        self.encoding = "identity"
        self.accepted = self.response_encoding = ""
        self.malformed, self.http_status = False, 200
        self.code, self.problem = "", ""
        self.handler: Any = None  # the dispatcher's MethodHandler of the path


def read_head(fields: list[HeaderField], whole: bool) -> CallHead:
    """Parse header fields; `whole` is False if the block exceeded the size limit."""
    head = CallHead()
    named = dict(fields)
    head.malformed = _is_malformed(fields, named)
    if head.malformed and whole:
        return head
    head.path, head.headers = named.get(":path", ""), metadata(fields)
    head.encoding = named.get("grpc-encoding", "identity")
    head.accepted = named.get("grpc-accept-encoding", "")
    head.length = int(named["content-length"]) if whole and "content-length" in named else None
    if not whole:
        head.malformed = False
        head.code, head.problem = "RESOURCE_EXHAUSTED", "the metadata of the call is too large"
    elif named[":method"] != "POST":
        head.http_status = 405
    elif named.get("content-type", "").partition(";")[0].strip() not in CONTENT_TYPES:
        head.http_status = 415
    elif head.encoding not in ENCODINGS:
        head.code, head.problem = "UNIMPLEMENTED", f"grpc-encoding is '{head.encoding[:40]}', must be one of {ACCEPTED}"
    else:
        _read_timeout(head, named.get("grpc-timeout"))
    return head


def _read_timeout(head: CallHead, text: str | None) -> None:
    if text is None:
        return
    digits, unit = text[:-1], text[-1:]
    if unit in _UNITS and digits.isascii() and digits.isdigit() and len(digits) <= 8:
        head.timeout = int(digits) * _UNITS[unit]
    else:
        head.code, head.problem = "INVALID_ARGUMENT", f"grpc-timeout is '{text[:40]}', must be digits and a unit"


def _is_malformed(fields: list[HeaderField], named: dict[str, str]) -> bool:
    """Return whether the fields violate RFC 9113, 8.2 or 8.3."""
    pseudo = [name for name, _ in fields if name.startswith(":")]
    first = [name for name, _ in fields[: len(pseudo)]]
    return (
        first != pseudo
        or len(set(pseudo)) != len(pseudo)
        or not _PSEUDO.issuperset(pseudo)
        or not {":method", ":scheme", ":path"}.issubset(pseudo)
        or not named[":path"].startswith("/")
        or not _FORBIDDEN.isdisjoint(named)
        or any(not name or name != name.lower() or not _NO_VALUE.isdisjoint(name + value) for name, value in fields)
        or named.get("te", "trailers") != "trailers"
        or not all(_LENGTH.fullmatch(value) for name, value in fields if name == "content-length")
        or len({value for name, value in fields if name == "content-length"}) > 1
    )


def metadata(fields: Iterable[HeaderField]) -> dict[str, str]:
    """Return custom metadata as HTTP headers, without binary (-bin) fields.

    `host` is the authority of the call, which admin calls check as those of HTTP check Host.
    """
    headers = {"host": "localhost"}  # of a client that sends no authority: no browser does so
    for name, value in fields:
        if name == ":authority":
            headers["host"] = value
        elif not name.startswith(":") and name not in _OWN and not name.endswith("-bin"):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class ResponseHeaderBlocks:
    """Encoder of one connection. `indexed`: the client's table has the entries of KNOWN_HEAD and KNOWN_DONE.

    Two fields are in every successful response. The first response adds both to the client's dynamic table (RFC 7541,
    6.2.1), so that they take a byte each afterwards; a client with a smaller table than the default gets literals.
    Blocks that change the table must be sent in the order of encoding, so one that waits behind data is all literals.
    """

    __slots__ = ("_plain", "_prefix", "_typed", "indexed")

    def __init__(self) -> None:
        self.indexed = self._typed = self._plain = False
        self._prefix = b""

    def table_size(self, size: int) -> None:
        """Stop using the dynamic table if the client's is smaller than the default; the next block announces it."""
        if size < DEFAULT_TABLE and not self._plain:
            self.indexed, self._plain, self._prefix = False, True, _NO_TABLE

    def head(self, encoding: str = "") -> bytes:
        more = literal("grpc-encoding", encoding) if encoding else b""
        if self._plain:
            return self._take_prefix() + STATUS_200 + literal(*TYPE) + more
        if self._typed:
            return (KNOWN_HEAD if self.indexed else STATUS_200 + indexed(NEWEST)) + more
        self._typed = True
        return STATUS_200 + literal(*TYPE, index=True) + more

    def success(self, *, waits: bool) -> bytes:
        if waits:
            return literal(*DONE)
        if self._plain:
            return self._take_prefix() + literal(*DONE)
        if self.indexed:
            return KNOWN_DONE
        self.indexed = True
        return literal(*DONE, index=True)

    def failure(self, code: str, message: str, trailers: Iterable[HeaderField], *, headed: bool, waits: bool) -> bytes:
        """Return the trailers of a failed call, or trailers-only headers unless headers were sent."""
        fields = [("grpc-status", str(CODES[code])), ("grpc-message", percent_encoded(message)), *trailers]
        start = b"" if headed else STATUS_200 + literal(*TYPE)
        return (b"" if waits else self._take_prefix()) + start + b"".join(literal(*field) for field in fields)

    def not_grpc(self, status: int) -> bytes:
        """Return the headers of the response to an HTTP request that is no gRPC call."""
        return self._take_prefix() + literal(":status", str(status))

    def _take_prefix(self) -> bytes:
        prefix, self._prefix = self._prefix, b""
        return prefix


def percent_encoded(message: str) -> str:
    """Encode `grpc-message`, truncated to MAX_MESSAGE at a character boundary."""
    encoded = quote(message, safe=_SAFE)
    if len(encoded) <= MAX_MESSAGE:
        return encoded
    cut = unquote_to_bytes(_PARTIAL.sub("", encoded[:MAX_MESSAGE]))
    return quote(cut.decode("utf-8", "ignore"), safe=_SAFE)
