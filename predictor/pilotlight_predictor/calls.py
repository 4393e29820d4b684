"""A request and its reply between the HTTP front and the routes: what aiohttp and the fast lane both speak."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from pilotlight.wire.http1 import Buffer

JSON = "application/json"


class Reply:
    """Status, headers and body. `body` is pieces that are written without being joined, or an async stream."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: list[Buffer] | AsyncIterator[bytes] | None = None,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.body = [] if body is None else body
        self.content_type = content_type
        self.headers = headers


class Session(Protocol):
    """A WebSocket as its handler sees it: each message received is answered by one sent, in order.

    `call` is the request that asked for it. What a message holds counts as bytes in flight until its answer is sent.
    """

    call: "Call"

    async def receive(self, timeout_s: float) -> Buffer | None:
        """The next message; None when the client or the server ends it. Raises TimeoutError, and PredictorError for a
        message that there is no room for."""

    async def send(self, text: Buffer) -> None: ...
    async def close(self, code: int, reason: str) -> None: ...


class Call:
    """One HTTP request with its whole body, and the way to answer it.

    `finish` is called exactly once, on the event loop. When the client leaves first, the front calls `abandon`, which
    runs what the route put into `on_abandon`.
    """

    __slots__ = (
        "abandoned", "body", "finish", "headers", "method", "on_abandon", "params", "path", "peer", "query", "started",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: Buffer,
        peer: str,
        finish: Callable[[Reply], None],
        started: float,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers  # names in lower case
        self.body = body
        self.peer = peer
        self.finish = finish
        self.started = started
        self.params: Mapping[str, str] = {}
        self.on_abandon: Callable[[], None] | None = None
        self.abandoned = False

    def abandon(self) -> None:
        self.abandoned = True
        if self.on_abandon is not None:
            self.on_abandon()

    def header(self, name: str) -> str:
        return self.headers.get(name, "")


def json_reply(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Content-Type is exactly application/json: KServe's client reads errors only then."""
    import orjson

    return Reply(status, [orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)], JSON, headers)
