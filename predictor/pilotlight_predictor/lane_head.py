"""Parsed request heads of the fast HTTP protocol: a client repeats its head, so it is parsed and routed once.

lane.py compares the bytes of the next head with the last one and parses only when they differ.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight.wire.http1 import END, PlainRequestHead, parse_head

if TYPE_CHECKING:
    from pilotlight_predictor.calls import HttpRequest


class FastRouter(Protocol):
    """Routing and authorization of requests that the fast protocol may serve."""

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
    """A head with its route. `text` ends with the empty line; head and body together have `whole` bytes, and the body
    begins at `start`."""

    __slots__ = ("body_start", "echoes", "head", "length", "match", "recheck", "serve", "text")

    def __init__(self, text: bytes, head: PlainRequestHead, match: Any, router: FastRouter, recheck: bool) -> None:
        self.text = text
        self.head = head
        self.match = match
        self.serve = router.serve  # read anew for each head: a booting server replaces it
        self.recheck = recheck
        self.echoes = HEADER_REQUEST_ID in head.headers or HEADER_TRACEPARENT in head.headers  # in replies
        self.body_start = len(text)
        self.length = self.body_start + head.length


def read_head(router: FastRouter, peer: str, text: bytes) -> KnownHead | None:
    """Parse and authorize a head; `text` ends before the empty line. None: aiohttp handles the request."""
    head = parse_head(text)
    match = router.match(head.method, head.path) if head is not None else None
    if head is None or match is None or not router.admits(head, peer, match):
        return None
    return KnownHead(text + END, head, match, router, router.recheck(match))
