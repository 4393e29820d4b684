"""Headers of a gRPC call from the fields of an HTTP/2 request: path, metadata, deadline, encoding. Pure.

The connection caches heads and shares them between calls that repeat them, so they must not be changed.
"""

from collections.abc import Iterable
from typing import Any, Final

from pilotlight.wire.http2.hpack import HeaderField

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
_NO_VALUE: Final = frozenset("\0\r\n")


class CallHead:
    """Call headers. `malformed`: no HTTP/2 request; `http_status` not 200: no gRPC call; `code` set: call rejected."""

    __slots__ = ("code", "encoding", "handler", "headers", "http_status", "malformed", "path", "problem", "timeout")

    def __init__(self) -> None:
        self.path, self.headers = "", {"host": "localhost"}
        self.timeout: float | None = None
        self.encoding = "identity"
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
    )


def metadata(fields: Iterable[HeaderField]) -> dict[str, str]:
    """Return custom metadata as HTTP headers, without binary (-bin) fields.

    `host` is always localhost: the DNS-rebinding check of HTTP is not needed, since browsers cannot send gRPC.
    """
    headers = {"host": "localhost"}
    for name, value in fields:
        if name.startswith(":") or name in _OWN or name.endswith("-bin"):
            continue
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
