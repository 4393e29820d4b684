"""WebSocket /predict/stream: each message is a body of /predict, responses are sent in order.

One task receives and submits, one sends, so that a client may pipeline. A slot is acquired before a message is read and
released when its response is sent: without a free slot nothing is read, and TCP flow control holds the client back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, perf_counter
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.admission import RateLimiter
from pilotlight_predictor.calls import HttpRequest, HttpResponse, WebSocketSession, json_response
from pilotlight_predictor.dispatch import ErrorBody, error_response
from pilotlight_predictor.errors import PredictorError, RateLimited
from pilotlight_predictor.routes.predict_run import NAME
from pilotlight_predictor.server import Server

MAX_IN_FLIGHT: Final = 16  # messages of one connection
NORMAL, INTERNAL = 1000, 1011
Begin = Callable[[Server, HttpRequest, ErrorBody], Awaitable[HttpResponse] | None]


def error_frame(error: PredictorError) -> HttpResponse:
    return json_response({"error": str(error).encode("utf-8", "replace").decode()}, error.status)


class StreamMessage:
    """Message in flight: its request, and the future of its response.

    The request refers to the future, not to this object: a cycle would hold up to 10 MB until garbage collection.
    """

    def __init__(self, session: WebSocketSession, text: Buffer) -> None:
        upgrade = session.request
        self.response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self.finish = partial(_settle, self.response)
        self.request = HttpRequest(
            upgrade.method, upgrade.path, upgrade.query, upgrade.headers, text, upgrade.peer, self.finish,
            perf_counter(),
        )  # fmt: skip
        self.later: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        self.request.abandon()
        if self.later is not None:
            self.later.cancel()


def _settle(future: asyncio.Future[HttpResponse], response: HttpResponse) -> None:
    if not future.done():
        future.set_result(response)


class PredictStream:
    def __init__(self, server: Server, session: WebSocketSession, begin: Begin) -> None:
        self._server, self._session, self._begin = server, session, begin
        self._idle_s = server.settings.performance.stream_idle_timeout_s
        rate = server.predict_limits.messages_per_second
        self._rate, self._limiter = rate, RateLimiter(rate, 1.0) if rate else None
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._waiting: asyncio.Queue[StreamMessage | None] = asyncio.Queue()  # bounded by the slots
        self._messages: set[StreamMessage] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        receiving, sending = loop.create_task(self._receive()), loop.create_task(self._send())
        try:
            await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                receiving.result()
                await sending
            else:
                sending.result()
        finally:
            for task in (receiving, sending):
                task.cancel()
            for message in self._messages:
                message.abandon()

    async def _receive(self) -> None:
        """Receive until the client or the server closes, or the connection is idle too long."""
        try:
            while True:
                await self._slots.acquire()
                text = await self._next()
                if text is None:
                    break
                self._handle(text)
        finally:
            self._waiting.put_nowait(None)

    async def _next(self) -> Buffer | PredictorError | None:
        """Return the next message, or the error that rejects it. A client that waits for responses is not idle."""
        while True:
            try:
                return await self._session.receive(self._idle_s)
            except PredictorError as error:
                return error
            except TimeoutError:
                if not self._messages:
                    await self._session.close(NORMAL, "Timeout")
                    return None

    def _handle(self, text: Buffer | PredictorError) -> None:
        message = StreamMessage(self._session, b"" if isinstance(text, PredictorError) else text)
        self._messages.add(message)
        self._waiting.put_nowait(message)
        try:
            if isinstance(text, PredictorError):
                raise text
            self._check_rate()
            outcome = self._begin(self._server, message.request, error_frame)
        except Exception as error:
            self._refuse(message, error)
        else:
            if outcome is not None:
                message.later = asyncio.get_running_loop().create_task(self._finish_later(message, outcome))

    def _check_rate(self) -> None:
        if self._limiter is not None and (wait := self._limiter.allow("", monotonic())):
            raise RateLimited(
                f"more than {self._rate} messages a second (safeguards.rate_limit.messages_per_second)", int(wait) + 1
            )

    async def _finish_later(self, message: StreamMessage, outcome: Awaitable[HttpResponse]) -> None:
        try:
            message.finish(await outcome)
        except Exception as error:
            self._refuse(message, error)

    def _refuse(self, message: StreamMessage, error: Exception) -> None:
        response = error_response(error_frame, error, message.request)
        self._server.observe_rejected(NAME, {}, response.status, perf_counter() - message.request.started)
        message.finish(response)

    async def _send(self) -> None:
        """Send responses in order; an internal error closes the connection."""
        while (message := await self._waiting.get()) is not None:
            response = await message.response
            self._messages.discard(message)
            if response.status == 500:
                await self._session.close(INTERNAL, "internal error; the server's log has the reason")
                return
            assert isinstance(response.body, list)
            await self._session.send(b"".join(response.body))
            self._slots.release()
