"""Mapping between gRPC and HTTP: statuses, headers, addresses. Pure."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import unquote

from pilotlight.contract import HEADER_REQUEST_ID

Pair = tuple[str, str | bytes]
FORWARDED_FOR: Final = "x-forwarded-for"

# Written by the library for the upstream call.
_HOP_BY_HOP: Final = frozenset({"user-agent", "te", "content-type", "host", "connection", "transfer-encoding"})

GRPC_STATUS: Final = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
# Other codes are client errors (400).
HTTP_STATUS: Final = {
    "OK": 200, "CANCELLED": 499, "UNKNOWN": 500, "INTERNAL": 500, "DATA_LOSS": 500, "UNIMPLEMENTED": 404,
    "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429, "NOT_FOUND": 404,
}  # fmt: skip


def http_status(code: str) -> int:
    return HTTP_STATUS.get(code, 400)


def to_headers(metadata: Iterable[Pair] | None) -> dict[str, str]:
    """Return the metadata as headers, for admission and routing; repeated ones are joined."""
    headers: dict[str, str] = {}
    for name, value in metadata or ():
        if isinstance(value, str):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def forwarded_metadata(metadata: Iterable[Pair] | None, peer: str) -> tuple[Pair, ...]:
    """Return the upstream metadata: the client's, its address, and a request id."""
    pairs = [
        (name, value) for name, value in metadata or () if name not in _HOP_BY_HOP and not name.startswith("grpc-")
    ]
    before = [str(value) for name, value in pairs if name == FORWARDED_FOR]
    forwarded: list[Pair] = [pair for pair in pairs if pair[0] != FORWARDED_FOR]
    forwarded.append((FORWARDED_FOR, ", ".join((*before, peer))))
    if not request_id(forwarded):
        forwarded.append((HEADER_REQUEST_ID, str(uuid.uuid4())))
    return tuple(forwarded)


def request_id(metadata: Sequence[Pair]) -> str:
    return next((str(value) for name, value in metadata if name == HEADER_REQUEST_ID), "")


def peer_address(text: str) -> str:
    """`ipv6:%5B::1%5D:41000` → `::1`."""
    kind, _, rest = unquote(text).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else text
