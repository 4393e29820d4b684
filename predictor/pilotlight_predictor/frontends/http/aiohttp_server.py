"""HTTP server by aiohttp, for all requests that the fast protocol does not serve: same dispatcher, same responses."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic, perf_counter
from typing import Final, Protocol

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import END, Buffer, render_head
from pilotlight.wire.http1_strict_parser import REQUEST_LINE
from pilotlight_predictor.errors import BadRequest, PredictorError, QueueFull, RequestTimeout
from pilotlight_predictor.frontends.http.messages import (
    JOIN_BELOW,
    JSON,
    TOO_SLOW,
    UNCOUNTED,
    HttpRequest,
    HttpResponse,
    close_stream,
    json_response,
    with_request_id,
)
from pilotlight_predictor.frontends.http.router import Dispatcher
from pilotlight_predictor.frontends.http.websocket import WebSockets
from pilotlight_predictor.frontends.peer import peer_of
from pilotlight_predictor.frontends.tasks_and_timeouts import IDLE_S, SLOW_S, Arrival, abort_when_unread
from pilotlight_predictor.observability.logs import log, new_request_id

MAX_LINE: Final = 1 << 16  # TRTIS' oldest protocol puts the whole inference request into a header
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SERVER: Final = "pilotlight"  # aiohttp would disclose its version and Python's
_PROBLEM: Final = b'{"error":"the request is not valid HTTP: send METHOD, target and HTTP/1.1, one space between them"}'
BAD_LINE: Final = render_head(400, JSON, len(_PROBLEM), None, True) + _PROBLEM


class Closing(Protocol):
    closing: bool


class Handler(web.RequestHandler):
    """aiohttp's connection handler, with errors as JSON that quote little of the client's bytes."""

    last_data = 0.0
    head_since = 0.0  # when the first byte of a head came; 0: no head is incomplete
    last_body: StreamReader | None = None
    ended_message = False  # the last bytes ended a message, so the next ones begin with a request line

    def data_received(self, data: bytes) -> None:
        first, self.last_data = not self.last_data, monotonic()
        if data and self._current_request is None and (self.last_body is None or self.last_body.is_eof()):
            if first or (not self.head_since and self.ended_message):
                line, end, _ = data.lstrip(b"\r\n").partition(b"\r\n")
                # aiohttp accepts HTTP/0.9, HTTP/2.0 and two spaces; the gateway does not.
                if end and not REQUEST_LINE.fullmatch(line) and self.transport is not None:
                    self.transport.write(BAD_LINE)
                    self.force_close()
                    return
            self.head_since = self.head_since or self.last_data
        self.ended_message = data.endswith(END)  # False also after most bodies: a part of the next head may follow them
        super().data_received(data)

    def close_if_overdue(self, now: float) -> None:
        """Close the connection if it is idle for too long, or sends a head too slowly."""
        if self._current_request is not None or self.transport is None:
            return
        if self.head_since and now - self.head_since > SLOW_S:
            self.transport.write(TOO_SLOW)
            self.force_close()
        elif now - self.last_data > IDLE_S:
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        headers = {"Content-Type": JSON, "Server": SERVER}
        if status == 500:
            headers[HEADER_REQUEST_ID] = request_id = request.headers.get(HEADER_REQUEST_ID) or new_request_id()
            log(
                "request.failed", "unexpected error", level="ERROR", error=exc, path=request.path, request_id=request_id
            )
            message = "internal error; see the server's log"
        reason = (message or "it cannot be read").splitlines()[0].rstrip(": ")
        error = reason if status == 500 else f"the request is not valid HTTP: {reason[:200]}"
        body = json_response({"error": error}).body
        assert isinstance(body, list)
        response = web.Response(status=status, body=bytes(body[0]), headers=headers)
        response.force_close()
        return response


class AiohttpServer:
    """Server of the connections that HttpServer switches to aiohttp."""

    def __init__(self, dispatcher: Dispatcher, owner: Closing) -> None:
        self._dispatcher = dispatcher
        self._owner = owner
        self.in_flight = 0
        self._reading: dict[asyncio.Timeout, tuple[bytearray, Arrival]] = {}  # bodies that are incomplete
        self._websockets = WebSockets(dispatcher)
        self._server = web.Server(self._handle, handler_cancellation=True)

    def handler(self, head_since: float = 0.0) -> asyncio.Protocol:
        """Return the protocol of a connection; `head_since` is when the first byte of its incomplete head came."""
        handler = Handler(
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # as web.Server passes it for no access log
            auto_decompress=False,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            tcp_keepalive=True,
        )
        handler.head_since = head_since
        return handler

    def close_overdue(self, now: float, slow_s: float) -> None:
        for limit, (body, arrival) in self._reading.items():
            if arrival.is_overdue(len(body), now, slow_s):
                limit.reschedule(asyncio.get_running_loop().time())
        for handler in self._server.connections:
            if isinstance(handler, Handler):
                handler.close_if_overdue(now)

    def close_websockets(self) -> None:
        """End all WebSockets: their clients would keep them open during the drain."""
        self._websockets.end()

    async def close(self, timeout_s: float) -> None:
        await self._server.shutdown(timeout_s)

    async def _handle(self, aio_request: web.BaseRequest) -> web.StreamResponse:
        self.in_flight += 1
        if isinstance(aio_request.protocol, Handler):
            aio_request.protocol.head_since, aio_request.protocol.last_body = 0.0, aio_request.content
        body = bytearray()
        request, response = self._create_request(aio_request, body)
        try:
            match = self._dispatcher.admit(request)
            if match.route.socket is not None and request.header("upgrade").lower() == "websocket":
                return await self._websockets.serve(aio_request, request, match)
            await self._read(aio_request, body, match.protocol.name)
            self._dispatcher.serve(request, match)
            try:
                await response
            except asyncio.CancelledError:  # the client disconnected
                request.abandon()
                raise
            return await self._send(aio_request, request, response.result())
        except PredictorError as error:
            match_or_none = self._dispatcher.match_or_none(request)
            # Only `_send` raises once there is a response.
            rejection = self._dispatcher.reject(request, error, match_or_none, counted=response.done())
            return await self._send(aio_request, request, rejection)
        except ConnectionError:  # the client has left before the head of the response: aiohttp notices when it writes
            return web.Response(status=499)
        finally:
            self.in_flight -= 1
            self._dispatcher.admission.release(len(body))
            request.body = b""  # a streamed response may refer to its request: the cycle must not hold the body

    async def _read(self, aio_request: web.BaseRequest, body: bytearray, protocol: str) -> None:
        """Read the body within the limits; its bytes count as bytes in flight."""
        admission = self._dispatcher.admission
        admission.check_size(aio_request.content_length or 0, protocol)
        if aio_request.headers.get("Expect", "").lower() == "100-continue" and aio_request.transport is not None:
            aio_request.transport.write(CONTINUE)
        limit = asyncio.timeout(None)
        self._reading[limit] = (body, Arrival(monotonic()))
        try:
            async with limit:
                async for chunk in aio_request.content.iter_any():
                    admission.check_size(len(body) + len(chunk), protocol)
                    admission.take(len(chunk))
                    body += chunk
        except TimeoutError:
            raise RequestTimeout(f"the body arrived too slowly; bytes received: {len(body)}") from None
        except (HttpProcessingError, web.RequestPayloadError, ValueError) as error:
            raise BadRequest(f"the body cannot be read: {str(error).splitlines()[0]}") from None
        finally:
            del self._reading[limit]

    def _create_request(
        self, aio_request: web.BaseRequest, body: Buffer
    ) -> tuple[HttpRequest, asyncio.Future[HttpResponse]]:
        future: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()

        def finish(response: HttpResponse) -> None:
            if not future.done():
                future.set_result(response)

        path, query = _target(aio_request)
        peer = peer_of(aio_request.transport) if aio_request.transport is not None else ""
        headers = _headers(aio_request)
        request = HttpRequest(aio_request.method, path, query, headers, body, peer, finish, perf_counter())
        request.forwarded = self._dispatcher.forwarding.forwarded(aio_request.headers.items())
        return request, future

    async def _send(
        self, aio_request: web.BaseRequest, request: HttpRequest, response: HttpResponse
    ) -> web.StreamResponse:
        headers = with_request_id(request, response) or {}
        headers |= {"Content-Type": response.content_type, "Server": SERVER}
        if isinstance(response.body, list) and (length := sum(map(len, response.body))) <= JOIN_BELOW:
            short = web.Response(status=response.status, body=b"".join(response.body), headers=headers)
            if self._owner.closing:
                short.force_close()
            return short
        stream = web.StreamResponse(status=response.status, headers=headers)
        if self._owner.closing:
            stream.force_close()
        if isinstance(response.body, list):
            stream.content_length = length
            with self._dispatcher.admission.hold(max(0, length - len(request.body))):
                await stream.prepare(aio_request)
                for buffer in response.body:
                    with abort_when_unread(aio_request.transport, len(buffer)):
                        await stream.write(buffer)
                with abort_when_unread(aio_request.transport):
                    await stream.write_eof()
            return stream
        await self._write_parts(aio_request, stream, response.body)
        with abort_when_unread(aio_request.transport):
            await stream.write_eof()
        return stream

    async def _write_parts(
        self, aio_request: web.BaseRequest, stream: web.StreamResponse, parts: AsyncIterator[bytes]
    ) -> None:
        """Write a streamed body; its generator is closed when the client disconnects."""
        admission = self._dispatcher.admission
        try:
            await stream.prepare(aio_request)
            async for piece in parts:
                size = len(piece)
                with admission.hold(size if size > UNCOUNTED else 0), abort_when_unread(aio_request.transport, size):
                    await stream.write(piece)
        except QueueFull as error:
            log("request.failed", f"a streamed response was cut off: {error}", level="WARNING")
            if aio_request.transport is not None:
                aio_request.transport.abort()
        finally:
            await close_stream(parts)


def _headers(aio_request: web.BaseRequest) -> dict[str, str]:
    """Return headers as the fast protocol does: names in lower case, values latin-1, repeated ones joined by commas."""
    headers: dict[str, str] = {}
    for name, value in aio_request.headers.items():
        key, value = name.lower(), value.encode("utf-8", "surrogateescape").decode("latin-1")
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _target(aio_request: web.BaseRequest) -> tuple[str, str]:
    """Return path and query; clients of a proxy send an absolute URL."""
    raw = aio_request.raw_path
    if not raw.startswith("/") and "://" in raw:
        return aio_request.rel_url.raw_path, aio_request.rel_url.raw_query_string
    path, _, query = raw.partition("?")
    return path, query
