"""HttpRequest and HttpResponse: the interface between HTTP servers (fast protocol, aiohttp) and routes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT, HEADER_TRACESTATE
from pilotlight.wire.http1 import Buffer, render_head

JSON = "application/json"
JOIN_BELOW: Final = 1 << 14  # smaller bodies are cheaper to copy after the head than to write separately
UNCOUNTED: Final = 1 << 16  # bytes of a response that count in no budget: the transport buffers as much by itself
_SLOW_BODY: Final = b'{"error":"the request came too slowly: send its head within 30 s, its body at 16 KiB/s or more"}'
TOO_SLOW: Final = render_head(408, JSON, len(_SLOW_BODY), None, True) + _SLOW_BODY
_NO_PARAMS: Mapping[str, str] = {}


class HttpResponse:
    """Status, headers and body. `body`: buffers, written without being joined, or an async stream."""

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


class WebSocketSession(Protocol):
    """A WebSocket for its handler: each received message is answered by one sent message, in order.

    `request` is the upgrade request. A message counts as bytes in flight until its answer is sent.
    """

    request: "HttpRequest"

    async def receive(self, timeout_s: float) -> Buffer | None:
        """Return the next message; None at the end of the session. Raises TimeoutError, and PredictorError for a
        message beyond the limit of bytes in flight."""

    async def send(self, text: Buffer) -> None: ...
    async def close(self, code: int, reason: str) -> None: ...


class HttpRequest:
    """An HTTP request with its complete body.

    `finish` sends the response; it is called exactly once, on the event loop. If the client disconnects first, the
    server calls `abandon`, which calls the route's `on_abandon`.
    """

    __slots__ = (
        "abandoned", "as_triton", "body", "finish", "forwarded", "headers", "method", "on_abandon", "params", "path",
        "peer", "query", "sole_client", "started",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: Buffer,
        peer: str,
        finish: Callable[[HttpResponse], None],
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
        self.as_triton = False  # errors and parameters are those of Triton
        self.forwarded = _NO_PARAMS  # headers that become parameters of the inference
        self.on_abandon: Callable[[], None] | None = None
        self.abandoned = False
        self.sole_client = False  # no other connection has sent requests for a while

    def abandon(self) -> None:
        self.abandoned = True
        if self.on_abandon is not None:
            self.on_abandon()

    def header(self, name: str) -> str:
        return self.headers.get(name, "")


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Encode as JSON. Content-Type is exactly application/json: KServe's client parses errors only then."""
    import orjson

    return HttpResponse(status, [orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)], JSON, headers)


def valid_text(error: object) -> str:
    """Return the text of an error, which may quote invalid Unicode of the client, so that it can be encoded."""
    return str(error).encode("utf-8", "replace").decode()


def with_request_id(request: HttpRequest, response: HttpResponse) -> dict[str, str] | None:
    """Return the response's headers with the request's id and trace context, for correlation with the logs."""
    headers = dict(response.headers) if response.headers else None
    request_id = request.headers.get(HEADER_REQUEST_ID)
    if request_id is not None and request_id.isascii():
        headers = {**(headers or {}), HEADER_REQUEST_ID: request_id}
    if HEADER_TRACEPARENT in request.headers:
        from pilotlight_predictor.observability.tracing import accept

        parent, state = accept(request.headers[HEADER_TRACEPARENT], request.headers.get(HEADER_TRACESTATE, ""))
        context = {HEADER_TRACEPARENT: parent, HEADER_TRACESTATE: state}  # empty if it is malformed
        headers = {**(headers or {}), **{name: value for name, value in context.items() if value}} or None
    return headers


def write_response(
    transport: asyncio.Transport, response: HttpResponse, length: int, headers: dict[str, str] | None, close: bool
) -> None:
    """Write head and body buffers, of `length` bytes, joined only if that is cheaper."""
    body = response.body
    assert isinstance(body, list)
    head = render_head(response.status, response.content_type, length, headers, close)
    if length > JOIN_BELOW:
        transport.writelines([head, *(piece for piece in body if len(piece))])
    else:
        transport.write(head + body[0] if len(body) == 1 else b"".join((head, *body)))


async def close_stream(parts: AsyncIterator[bytes]) -> None:
    close = getattr(parts, "aclose", None)
    if close is not None:
        await close()
