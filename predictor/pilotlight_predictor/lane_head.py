"""The head that a client repeats: read once for its connection, with what follows from it for every such request.

lane.py asks for it when a request begins otherwise than the last one did, and compares bytes until then.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight.wire.http1 import END, Head, parse_head

if TYPE_CHECKING:
    from pilotlight_predictor.calls import Call
    from pilotlight_predictor.lane import Lane


class Front(Protocol):
    """What the lane needs of the server; a booting one answers what it can."""

    lanes: "set[Lane]"
    speaker: "Lane | None"  # whose request came last
    closing: bool

    def match(self, method: str, path: str) -> Any | None:
        """The route when this lane may serve it, else None."""

    def admits(self, head: Head, peer: str, match: Any) -> bool:
        """Whether the caller may do this; asked before a body is read. A refusal is aiohttp's to say."""

    def asks(self, match: Any) -> bool:
        """Whether `admits` may refuse a request with the same head as one that it let through."""

    @property
    def reserve(self) -> Callable[[int], int | None]:
        """Gives the bytes reserved for a body of this length; None: refused, which is aiohttp's to say."""

    @property
    def release(self) -> Callable[[int], None]: ...
    @property
    def serve(self) -> "Callable[[Call, Any], None]":
        """Answers a call that has this match, now or later."""

    def hand_over(self, lane: "Lane") -> None: ...


class KnownHead:
    """`text` ends with the empty line; a request of this head has `whole` bytes, of which the first `start` are it."""

    __slots__ = ("asks", "echoes", "head", "match", "serve", "start", "text", "whole")

    def __init__(self, text: bytes, head: Head, match: Any, front: Front, asks: bool) -> None:
        self.text = text
        self.head = head
        self.match = match
        self.serve = front.serve  # which a booting server replaces
        self.asks = asks  # whether such a request may be refused though the last one was not
        self.echoes = HEADER_REQUEST_ID in head.headers or HEADER_TRACEPARENT in head.headers  # in replies
        self.start = len(text)
        self.whole = self.start + head.length


def read_head(front: Front, peer: str, text: bytes) -> KnownHead | None:
    """`text` ends before the empty line. None where the request is aiohttp's to judge."""
    head = parse_head(text)
    match = front.match(head.method, head.path) if head is not None else None
    if head is None or match is None or not front.admits(head, peer, match):
        return None
    return KnownHead(text + END, head, match, front, front.asks(match))
