"""A request and its reply between the HTTP front and the routes: what aiohttp and the fast lane both speak."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT, HEADER_TRACESTATE
from pilotlight.wire.http1 import Buffer

JSON = "application/json"
_NO_PARAMS: Mapping[str, str] = {}


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
        "abandoned", "alone", "body", "finish", "headers", "method", "on_abandon", "params", "path", "peer", "query",
        "started",
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
        self.params = _NO_PARAMS
        self.on_abandon: Callable[[], None] | None = None
        self.abandoned = False
        self.alone = False  # nobody else has asked anything for a while

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


def with_request_id(call: Call, reply: Reply) -> dict[str, str] | None:
    """Replies carry the request's id and trace context, so that a client can find itself in our logs."""
    headers = dict(reply.headers) if reply.headers else None
    request_id = call.headers.get(HEADER_REQUEST_ID)
    if request_id is not None and request_id.isascii():
        headers = {**(headers or {}), HEADER_REQUEST_ID: request_id}
    if HEADER_TRACEPARENT in call.headers:
        headers = {**(headers or {}), **_trace(call)} or None
    return headers


def _trace(call: Call) -> dict[str, str]:
    """W3C trace context as it may be passed on: nothing of it when it is malformed."""
    from pilotlight_predictor.tracing import accept

    parent, state = accept(call.headers[HEADER_TRACEPARENT], call.headers.get(HEADER_TRACESTATE, ""))
    passed = {HEADER_TRACEPARENT: parent, HEADER_TRACESTATE: state}
    return {name: value for name, value in passed.items() if value}
