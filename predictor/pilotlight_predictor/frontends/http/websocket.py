"""WebSocket sessions by aiohttp, for upgrade requests that aiohttp_server.py has admitted."""

import asyncio
from collections import deque
from typing import Final

from aiohttp import WSMessage, web

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest, QueueFull
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.http.messages import HttpRequest
from pilotlight_predictor.frontends.http.router import Dispatcher, Match, error_response
from pilotlight_predictor.frontends.tasks_and_timeouts import abort_when_unread

GOING_AWAY: Final = 1001
INTERNAL: Final = 1011
TRY_AGAIN_LATER: Final = 1013
MAX_REASON: Final = 123  # bytes of a close frame's text
CLOSE_S: Final = 2.0  # for a client to confirm the end of a WebSocket


class WebSocket:
    """aiohttp's WebSocket as a WebSocketSession."""

    def __init__(
        self,
        response: web.WebSocketResponse,
        request: HttpRequest,
        admission: Admission,
        transport: asyncio.Transport | None,
    ) -> None:
        self.request = request
        self._transport = transport
        self.ended = False
        self._response = response
        self._admission = admission
        self._reserved: deque[int] = deque()  # bytes of each message that is not answered yet
        self._pending: asyncio.Future[WSMessage] | None = None

    async def receive(self, timeout_s: float) -> Buffer | None:
        """Receive a message; one that arrives after the timeout is returned by the next call."""
        if self.ended:
            return None
        pending = self._pending = self._pending or asyncio.ensure_future(self._response.receive())
        await asyncio.wait({pending}, timeout=timeout_s or None)
        if pending.cancelled():  # by `end`
            return None
        if not pending.done():
            raise TimeoutError
        self._pending = None
        message = pending.result()
        if message.type not in (web.WSMsgType.TEXT, web.WSMsgType.BINARY):
            return None
        data = message.data.encode() if isinstance(message.data, str) else message.data
        self._reserved.append(0)
        self._admission.take(len(data))
        self._reserved[-1] = len(data)
        return data

    async def send(self, text: Buffer) -> None:
        self._admission.release(self._reserved.popleft())
        with self._admission.hold(len(text)), abort_when_unread(self._transport, len(text)):
            await self._response.send_frame(bytes(text), web.WSMsgType.TEXT)

    async def close(self, code: int, reason: str) -> None:
        await self._response.close(code=code, message=reason.encode())

    def end(self) -> None:
        """Receive no further message; received ones are still answered."""
        self.ended = True
        if self._pending is not None:
            self._pending.cancel()

    def release(self) -> None:
        self._admission.release(sum(self._reserved))
        if self._pending is not None:
            self._pending.cancel()


class WebSockets:
    """All open WebSockets."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._sockets: set[WebSocket] = set()
        self._ending = False

    def end(self) -> None:
        """End all, including those being opened."""
        self._ending = True
        for socket in self._sockets:
            socket.end()

    async def serve(self, aio_request: web.BaseRequest, request: HttpRequest, match: Match) -> web.StreamResponse:
        """Run the protocol's handler until either side ends; its exceptions are logged as internal errors."""
        admission = self._dispatcher.admission
        max_bytes = admission.max_bytes(match.protocol.name)
        response = web.WebSocketResponse(timeout=CLOSE_S, compress=False, max_msg_size=max_bytes)
        if not response.can_prepare(aio_request):
            raise BadRequest("the WebSocket handshake is not version 13")
        await response.prepare(aio_request)
        socket = WebSocket(response, request, admission, aio_request.transport)
        self._sockets.add(socket)
        if self._ending:
            socket.end()
        try:
            await self._dispatcher.serve_websocket(socket, match)
            await socket.close(*((GOING_AWAY, "the server is stopping") if socket.ended else (1000, "")))
        except ConnectionError:  # the client disconnected without a close frame
            pass
        except QueueFull as error:
            await socket.close(TRY_AGAIN_LATER, str(error)[:MAX_REASON])
        except Exception as error:
            error_response(match.protocol.error_body, error, request)
            await socket.close(INTERNAL, "internal error")
        finally:
            self._sockets.discard(socket)
            socket.release()
        return response
