"""Heads of plain requests for the fast protocol: parsed, matched with a route and authorized once per distinct head."""

from collections.abc import Callable
from typing import Any, Protocol

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight.wire.http1 import END, PlainRequestHead, parse_head
from pilotlight_predictor.frontends.http.messages import HttpRequest


class HeadOwner(Protocol):
    """HTTP server as the heads of its requests need it."""

    def match(self, method: str, path: str) -> Any | None:
        """Return the route if the fast protocol may serve it, else None."""

    def admits(self, head: PlainRequestHead, peer: str, match: Any) -> bool:
        """Return whether the client is authorized, before the body is read. aiohttp sends the refusal."""

    def recheck(self, match: Any) -> bool:
        """Return whether `admits` must be called for every request, not once per distinct head."""

    @property
    def serve(self) -> "Callable[[HttpRequest, Any], None]":
        """Handler of a request with this match; it may respond later."""


class KnownHead:
    """A parsed head with its route. A client repeats its head: as long as the bytes are the same, it is parsed once.

    `text` ends with the empty line; head and body together have `length` bytes, and the body begins at `body_start`.
    """

    __slots__ = ("body_start", "echoes", "head", "length", "match", "recheck", "serve", "text")

    def __init__(self, text: bytes, head: PlainRequestHead, match: Any, owner: HeadOwner, recheck: bool) -> None:
        self.text = text
        self.head = head
        self.match = match
        self.serve = owner.serve  # read anew for each head: a booting server replaces it
        self.recheck = recheck
        self.echoes = HEADER_REQUEST_ID in head.headers or HEADER_TRACEPARENT in head.headers  # in replies
        self.body_start = len(text)
        self.length = self.body_start + head.length


def read_head(owner: HeadOwner, peer: str, text: bytes) -> KnownHead | None:
    """Parse and authorize a head; `text` ends before the empty line. None: aiohttp handles the request."""
    head = parse_head(text)
    match = owner.match(head.method, head.path) if head is not None else None
    if head is None or match is None or not owner.admits(head, peer, match):
        return None
    return KnownHead(text + END, head, match, owner, owner.recheck(match))
