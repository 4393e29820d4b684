"""WebSockets by aiohttp, for the routes of a dialect that talk over one; http.py hands an admitted request over."""

import asyncio
from collections import deque
from typing import Final

from aiohttp import WSMessage, web

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.calls import Call
from pilotlight_predictor.dispatch import Dispatcher, Match, error_reply
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.unread import abort_when_unread

GOING_AWAY: Final = 1001
INTERNAL: Final = 1011
CLOSE_S: Final = 2.0  # for a client to confirm the end of a WebSocket


class Socket:
    """aiohttp's WebSocket as a dialect sees it (`calls.Session`)."""

    def __init__(
        self, response: web.WebSocketResponse, call: Call, admission: Admission, transport: asyncio.Transport | None
    ) -> None:
        self.call = call
        self._transport = transport
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
        with abort_when_unread(self._transport, len(text)):
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


class Conversations:
    """All WebSockets that are open."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._sockets: set[Socket] = set()
        self._ending = False

    def end(self) -> None:
        """Also of those that are just being opened."""
        self._ending = True
        for socket in self._sockets:
            socket.end()

    async def hold(self, request: web.BaseRequest, call: Call, match: Match) -> web.StreamResponse:
        """Lets the dialect talk; whatever it raises is ours, not the client's."""
        admission = self._dispatcher.admission
        most = admission.max_bytes(match.dialect.name)
        response = web.WebSocketResponse(timeout=CLOSE_S, compress=False, max_msg_size=most)
        if not response.can_prepare(request):
            raise BadRequest("the WebSocket handshake is not one of version 13")
        await response.prepare(request)
        socket = Socket(response, call, admission, request.transport)
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
