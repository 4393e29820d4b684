"""What gRPC and HTTP call the same things: statuses, headers, addresses. Pure."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import unquote

from pilotlight.contract import HEADER_REQUEST_ID

Pair = tuple[str, str | bytes]
FORWARDED_FOR: Final = "x-forwarded-for"

# The library writes these itself for the second half of the way.
_OF_THE_HOP: Final = frozenset({"user-agent", "te", "content-type", "host", "connection", "transfer-encoding"})

GRPC_STATUS: Final = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
# Others are the caller's own doing and count as answers.
HTTP_STATUS: Final = {
    "OK": 200, "CANCELLED": 499, "UNKNOWN": 500, "INTERNAL": 500, "DATA_LOSS": 500, "UNIMPLEMENTED": 404,
    "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429, "NOT_FOUND": 404,
}  # fmt: skip


def http_status(code: str) -> int:
    return HTTP_STATUS.get(code, 400)


def headers_of(metadata: Iterable[Pair] | None) -> dict[str, str]:
    """As the gate and the choice of a revision read headers; of one that is repeated all values count."""
    found: dict[str, str] = {}
    for name, value in metadata or ():
        if isinstance(value, str):
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def forwarded(metadata: Iterable[Pair] | None, peer: str) -> tuple[Pair, ...]:
    """What the replica is told: all that the client said, who it is, and an id for the request."""
    said = [(name, value) for name, value in metadata or () if name not in _OF_THE_HOP and not name.startswith("grpc-")]
    before = [str(value) for name, value in said if name == FORWARDED_FOR]
    kept: list[Pair] = [pair for pair in said if pair[0] != FORWARDED_FOR]
    kept.append((FORWARDED_FOR, ", ".join((*before, peer))))
    if not request_id(kept):
        kept.append((HEADER_REQUEST_ID, str(uuid.uuid4())))
    return tuple(kept)


def request_id(metadata: Sequence[Pair]) -> str:
    return next((str(value) for name, value in metadata if name == HEADER_REQUEST_ID), "")


def peer_of(text: str) -> str:
    """`ipv6:%5B::1%5D:41000` → `::1`."""
    kind, _, rest = unquote(text).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else text
