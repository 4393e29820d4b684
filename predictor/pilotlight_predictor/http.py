"""All of HTTP by aiohttp: what the fast lane does not serve itself. Same dispatcher, same answers."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic, perf_counter
from typing import Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.calls import JSON, Call, Reply, json_reply, with_request_id
from pilotlight_predictor.dispatch import Dispatcher
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.lane_patience import IDLE_S, LEAST_RATE, SLOW_S
from pilotlight_predictor.lane_reply import JOIN_BELOW
from pilotlight_predictor.logs import log, new_request_id
from pilotlight_predictor.unread import abort_when_unread
from pilotlight_predictor.web_sockets import Conversations

MAX_LINE: Final = 1 << 16  # the header that carries a whole request in the oldest dialect is long
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SERVER: Final = "pilotlight"  # aiohttp would tell its version and Python's


class Closing(Protocol):
    closing: bool


class Handler(web.RequestHandler):
    """aiohttp's connection, with errors in our words: JSON, and no more of the client's bytes than a sentence."""

    last_data = 0.0

    def data_received(self, data: bytes) -> None:
        self.last_data = monotonic()
        super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        headers = {"Content-Type": JSON, "Server": SERVER}
        if status == 500:
            headers[HEADER_REQUEST_ID] = request_id = request.headers.get(HEADER_REQUEST_ID) or new_request_id()
            log(
                "request.failed", "unexpected error", level="ERROR", error=exc, path=request.path, request_id=request_id
            )
            message = "internal error; the server's log has the reason"
        words = (message or "it cannot be read").splitlines()[0].rstrip(": ")
        reply = json_reply({"error": words if status == 500 else f"the request is not valid HTTP: {words[:200]}"})
        assert isinstance(reply.body, list)
        response = web.Response(status=status, body=bytes(reply.body[0]), headers=headers)
        response.force_close()
        return response


class FullServer:
    def __init__(self, dispatcher: Dispatcher, front: Closing) -> None:
        self._dispatcher = dispatcher
        self._front = front
        self.in_flight = 0
        self._conversations = Conversations(dispatcher)
        self._server = web.Server(self._handle, handler_cancellation=True)

    def handler(self) -> asyncio.Protocol:
        return Handler(
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # as web.Server gives it when there shall be none
            auto_decompress=False,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            tcp_keepalive=True,
        )

    def end_overdue(self, now: float) -> None:
        """Ends connections on which nothing was asked for long, whole or in part."""
        for handler in self._server.connections:
            if isinstance(handler, Handler) and handler._current_request is None and now - handler.last_data > IDLE_S:
                handler.force_close()

    def end_sockets(self) -> None:
        """The server stops: a WebSocket would stay as long as its client likes."""
        self._conversations.end()

    async def close(self, timeout_s: float) -> None:
        await self._server.shutdown(timeout_s)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.in_flight += 1
        body = bytearray()
        call, reply = self._call(request, body)
        try:
            match = self._dispatcher.admit(call)
            if match.route.socket is not None and call.header("upgrade").lower() == "websocket":
                return await self._conversations.hold(request, call, match)
            await self._read(request, body, match.dialect.name)
            self._dispatcher.serve(call, match)
            return await self._answer(request, call, await self._reply(call, reply))
        except PredictorError as error:
            told = self._dispatcher.refused(call, error, self._dispatcher.match_or_none(call))
            return await self._answer(request, call, told)
        finally:
            self.in_flight -= 1
            self._dispatcher.admission.give_back(len(body))
            call.body = b""  # a reply in parts may know its call, which knows the reply, until the next collection

    async def _read(self, request: web.BaseRequest, body: bytearray, dialect: str) -> None:
        """Fills the body within the limits; each byte in it is taken from the budget of bytes in flight."""
        admission = self._dispatcher.admission
        admission.check_size(request.content_length or 0, dialect)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(CONTINUE)
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(SLOW_S) as limit:
                async for chunk in request.content.iter_any():
                    admission.check_size(len(body) + len(chunk), dialect)
                    admission.take(len(chunk))
                    body += chunk
                    limit.reschedule(started + SLOW_S + len(body) / LEAST_RATE)
        except TimeoutError:
            raise BadRequest(f"the body came too slowly: {len(body)} bytes are here") from None
        except (HttpProcessingError, web.RequestPayloadError, ValueError) as error:
            raise BadRequest(f"the body cannot be read: {str(error).splitlines()[0]}") from None

    def _call(self, request: web.BaseRequest, body: Buffer) -> tuple[Call, asyncio.Future[Reply]]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def finish(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        path, query = _target(request)
        call = Call(
            request.method, path, query, _headers(request), body, request.remote or "", finish, perf_counter()
        )  # fmt: skip
        return call, future

    async def _reply(self, call: Call, reply: asyncio.Future[Reply]) -> Reply:
        try:
            return await reply
        except asyncio.CancelledError:  # the client has gone
            call.abandon()
            raise

    async def _answer(self, request: web.BaseRequest, call: Call, reply: Reply) -> web.StreamResponse:
        headers = with_request_id(call, reply) or {}
        headers |= {"Content-Type": reply.content_type, "Server": SERVER}
        if isinstance(reply.body, list) and (length := sum(map(len, reply.body))) <= JOIN_BELOW:
            response = web.Response(status=reply.status, body=b"".join(reply.body), headers=headers)
            if self._front.closing:
                response.force_close()
            return response
        stream = web.StreamResponse(status=reply.status, headers=headers)
        if self._front.closing:
            stream.force_close()
        if isinstance(reply.body, list):
            stream.content_length = length
            await stream.prepare(request)
            for buffer in reply.body:
                with abort_when_unread(request.transport, len(buffer)):
                    await stream.write(buffer)
        else:
            await self._write_parts(request, stream, reply.body)
        with abort_when_unread(request.transport):
            await stream.write_eof()
        return stream

    async def _write_parts(
        self, request: web.BaseRequest, stream: web.StreamResponse, parts: AsyncIterator[bytes]
    ) -> None:
        """A body that is made while it is sent: who makes it is told when nobody reads it any more."""
        try:
            await stream.prepare(request)
            async for piece in parts:
                with abort_when_unread(request.transport, len(piece)):
                    await stream.write(piece)
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()


def _headers(request: web.BaseRequest) -> dict[str, str]:
    """As the fast lane reads them: lower-case names, values byte for byte, repeated ones joined as HTTP says."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        key, value = name.lower(), value.encode("utf-8", "surrogateescape").decode("latin-1")
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _target(request: web.BaseRequest) -> tuple[str, str]:
    """Path and query; a proxy's client names the whole address."""
    raw = request.raw_path
    if not raw.startswith("/") and "://" in raw:
        return request.rel_url.raw_path, request.rel_url.raw_query_string
    path, _, query = raw.partition("?")
    return path, query
