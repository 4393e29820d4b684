"""The head of a gRPC call, read from the fields of an HTTP/2 request: path, metadata, deadline, encoding. Pure.

A head is remembered by its connection and shared by all calls that repeat it: nobody may change it.
"""

from collections.abc import Iterable
from typing import Any, Final

from pilotlight.wire.http2.hpack import Field

ENCODINGS: Final = ("identity", "gzip", "deflate")
ACCEPTED: Final = ",".join(ENCODINGS)
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
# What HTTP/2 has no place for; a request with one of them may be one that was smuggled through HTTP/1.
_FORBIDDEN: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_OWN: Final = frozenset(
    {"te", "host", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "grpc-message-type"}
)
_NO_VALUE: Final = frozenset("\0\r\n")


class CallHead:
    """`malformed` is no request at all, `http_status` no call of gRPC; `code` and `problem` refuse a call."""

    __slots__ = ("code", "encoding", "headers", "http_status", "malformed", "path", "post", "problem", "timeout")

    def __init__(self) -> None:
        self.path, self.headers = "", {"host": "localhost"}
        self.timeout: float | None = None
        self.encoding = "identity"
        self.malformed, self.http_status = False, 200
        self.code, self.problem = "", ""
        self.post: Any = None  # where desk.py takes such calls


def read_head(fields: list[Field], whole: bool) -> CallHead:
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
    elif not _is_grpc(named.get("content-type", "")):
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


def _is_grpc(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip()
    return kind == "application/grpc" or kind == "application/grpc+proto"


def _is_malformed(fields: list[Field], named: dict[str, str]) -> bool:
    """RFC 9113, 8.2 and 8.3."""
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


def metadata(fields: Iterable[Field]) -> dict[str, str]:
    """As HTTP's headers; what is binary has no meaning here. `host` names this machine whatever the client says: no web
    page can make a browser speak gRPC to it."""
    headers = {"host": "localhost"}
    for name, value in fields:
        if name.startswith(":") or name in _OWN or name.endswith("-bin"):
            continue
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
