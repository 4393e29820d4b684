"""All of HTTP by aiohttp: what the fast lane does not serve itself. Same dispatcher, same answers."""

import asyncio
from collections import deque
from time import monotonic, perf_counter
from typing import Final, Protocol

from aiohttp import WSMessage, web
from aiohttp.http_exceptions import HttpProcessingError

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.calls import JSON, Call, Reply, json_reply
from pilotlight_predictor.dispatch import Dispatcher, Match, error_reply
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.lane import IDLE_S, JOIN_BELOW, LEAST_RATE, SLOW_S, with_request_id
from pilotlight_predictor.logs import log, new_request_id

MAX_LINE: Final = 1 << 16  # the header that carries a whole request in the oldest dialect is long
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SERVER: Final = "pilotlight"  # aiohttp would tell its version and Python's


GOING_AWAY: Final = 1001
INTERNAL: Final = 1011
CLOSE_S: Final = 2.0  # for a client to confirm the end of a WebSocket


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


class Socket:
    """aiohttp's WebSocket as a dialect sees it (`calls.Session`)."""

    def __init__(self, response: web.WebSocketResponse, call: Call, admission: Admission) -> None:
        self.call = call
        self.ended = False
        self._response = response
        self._admission = admission
        self._held: deque[int] = deque()  # bytes of the messages that are still to be answered
        self._coming: asyncio.Future[WSMessage] | None = None

    async def receive(self, timeout_s: float) -> Buffer | None:
        """A message that comes too late for one call is there for the next."""
        if self.ended:
            return None
        coming = self._coming = self._coming or asyncio.ensure_future(self._response.receive())
        await asyncio.wait({coming}, timeout=timeout_s or None)
        if coming.cancelled():  # by `end`
            return None
        if not coming.done():
            raise TimeoutError
        self._coming = None
        message = coming.result()
        if message.type not in (web.WSMsgType.TEXT, web.WSMsgType.BINARY):
            return None
        data = message.data.encode() if isinstance(message.data, str) else message.data
        self._held.append(0)
        self._admission.take(len(data))
        self._held[-1] = len(data)
        return data

    async def send(self, text: Buffer) -> None:
        self._admission.give_back(self._held.popleft())
        await self._response.send_frame(bytes(text), web.WSMsgType.TEXT)

    async def close(self, code: int, reason: str) -> None:
        await self._response.close(code=code, message=reason.encode())

    def end(self) -> None:
        """What was received is still answered; nothing more is."""
        self.ended = True
        if self._coming is not None:
            self._coming.cancel()

    def release(self) -> None:
        self._admission.give_back(sum(self._held))
        if self._coming is not None:
            self._coming.cancel()


class FullServer:
    def __init__(self, dispatcher: Dispatcher, front: Closing) -> None:
        self._dispatcher = dispatcher
        self._front = front
        self.in_flight = 0
        self._sockets: set[Socket] = set()
        self._ending = False
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
        self._ending = True
        for socket in self._sockets:
            socket.end()

    async def close(self, timeout_s: float) -> None:
        await self._server.shutdown(timeout_s)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.in_flight += 1
        body = bytearray()
        call, reply = self._call(request, body)
        try:
            match = self._dispatcher.admit(call)
            if match.route.socket is not None and call.header("upgrade").lower() == "websocket":
                return await self._converse(request, call, match)
            await self._read(request, body, match.dialect.name)
            self._dispatcher.serve(call, match)
            return await self._answer(request, call, await self._reply(call, reply))
        except PredictorError as error:
            told = self._dispatcher.refused(call, error, self._dispatcher.match_or_none(call))
            return await self._answer(request, call, told)
        finally:
            self.in_flight -= 1
            self._dispatcher.admission.give_back(len(body))

    async def _converse(self, request: web.BaseRequest, call: Call, match: Match) -> web.StreamResponse:
        """Lets the dialect talk; whatever it raises is ours, not the client's."""
        admission = self._dispatcher.admission
        most = admission.max_bytes(match.dialect.name)
        response = web.WebSocketResponse(timeout=CLOSE_S, compress=False, max_msg_size=most)
        if not response.can_prepare(request):
            raise BadRequest("the WebSocket handshake is not one of version 13")
        await response.prepare(request)
        socket = Socket(response, call, admission)
        self._sockets.add(socket)
        if self._ending:
            socket.end()
        try:
            await self._dispatcher.converse(socket, match)
            await socket.close(*((GOING_AWAY, "the server is stopping") if socket.ended else (1000, "")))
        except ConnectionError:  # the client has gone without a word
            pass
        except Exception as error:
            error_reply(match.dialect.error_body, error, call)
            await socket.close(INTERNAL, "internal error")
        finally:
            self._sockets.discard(socket)
            socket.release()
        return response

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
                await stream.write(buffer)
        else:
            await stream.prepare(request)
            async for piece in reply.body:
                await stream.write(piece)
        await stream.write_eof()
        return stream


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
