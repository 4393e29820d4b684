"""All of HTTP by aiohttp: what the fast lane does not serve itself. Same dispatcher, same answers."""

import asyncio
from time import perf_counter
from typing import Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.dispatch import Dispatcher, error_reply
from pilotlight_predictor.errors import BadRequest, PredictorError, RequestTooLarge
from pilotlight_predictor.lane import with_request_id

MAX_LINE: Final = 1 << 16  # the header that carries a whole request in the oldest dialect is long


class Closing(Protocol):
    closing: bool


class FullServer:
    def __init__(self, dispatcher: Dispatcher, front: Closing) -> None:
        self._dispatcher = dispatcher
        self._front = front
        self.in_flight = 0
        self._server = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            tcp_keepalive=True,
        )

    def handler(self) -> asyncio.Protocol:
        return self._server()

    async def close(self, timeout_s: float) -> None:
        await self._server.shutdown(timeout_s)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.in_flight += 1
        held = 0
        try:
            body, held = await self._read(request)
            call, reply = self._call(request, body)
            self._dispatcher.serve(call)
            return await self._answer(request, call, await self._reply(call, reply))
        except PredictorError as error:
            call, _ = self._call(request, b"")
            return await self._answer(
                request, call, error_reply(self._dispatcher.dialect_of(call).error_body, error, call)
            )
        finally:
            self.in_flight -= 1
            self._dispatcher.admission.give_back(held)

    async def _read(self, request: web.BaseRequest) -> tuple[bytes, int]:
        """The whole body within the limits, and how much of the byte budget it holds."""
        admission = self._dispatcher.admission
        admission.check_size(request.content_length or 0)
        body, held = bytearray(), 0
        try:
            async for chunk in request.content.iter_any():
                admission.check_size(len(body) + len(chunk))
                admission.take(len(chunk))
                held += len(chunk)
                body += chunk
        except (RequestTooLarge, PredictorError):
            admission.give_back(held)
            raise
        except (HttpProcessingError, web.RequestPayloadError, ValueError) as error:
            admission.give_back(held)
            raise BadRequest(f"the body cannot be read: {error}") from None
        except asyncio.CancelledError:
            admission.give_back(held)
            raise
        return bytes(body), held

    def _call(self, request: web.BaseRequest, body: bytes) -> tuple[Call, asyncio.Future[Reply]]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def finish(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        headers = {name.lower(): value for name, value in request.headers.items()}
        path, _, query = request.raw_path.partition("?")
        peer = request.remote or ""
        return Call(request.method, path, query, headers, body, peer, finish, perf_counter()), future

    async def _reply(self, call: Call, reply: asyncio.Future[Reply]) -> Reply:
        try:
            return await reply
        except asyncio.CancelledError:  # the client has gone
            call.abandon()
            raise

    async def _answer(self, request: web.BaseRequest, call: Call, reply: Reply) -> web.StreamResponse:
        headers = with_request_id(call, reply) or {}
        headers["Content-Type"] = reply.content_type
        if self._front.closing:
            headers["Connection"] = "close"
        if isinstance(reply.body, list):
            response = web.Response(status=reply.status, body=b"".join(reply.body), headers=headers)
            if self._front.closing:
                response.force_close()
            return response
        stream = web.StreamResponse(status=reply.status, headers=headers)
        await stream.prepare(request)
        async for piece in reply.body:
            await stream.write(piece)
        await stream.write_eof()
        return stream
