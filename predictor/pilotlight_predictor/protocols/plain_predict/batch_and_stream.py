"""Inference of /predict: one request, whose batch may run as several parts, or the messages of /predict/stream."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight.wire.token_bucket import TokenBuckets
from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.errors import BadRequest, Cancelled, DeadlineExceeded, PredictorError, RateLimited
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, WebSocketSession
from pilotlight_predictor.frontends.http.router import ErrorBody, error_response
from pilotlight_predictor.frontends.tasks_and_timeouts import spawn
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.plain_predict.codec import InvalidInput, PredictPart, encode_predictions
from pilotlight_predictor.protocols.run_inference import is_long
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.scheduling.executor_interface import Ticket
from pilotlight_predictor.server.handler_context import Server

NAME: Final = "predict"
MAX_SUBMITTED: Final = 8  # parts of one request in the model's queue, so that other requests get their turn
MAX_IN_FLIGHT: Final = 16  # messages of one connection
NORMAL, INTERNAL = 1000, 1011  # WebSocket close codes
Begin = Callable[[Server, HttpRequest, ErrorBody], Awaitable[HttpResponse] | None]


class PredictInference:
    """Run of all parts; `finish` is called exactly once, on the event loop, with the response."""

    def __init__(
        self,
        server: Server,
        request: HttpRequest,
        served: ModelVersion,
        parts: Sequence[PredictPart],
        error_body: ErrorBody,
        batch: bool,
    ) -> None:
        self._server, self._request, self._served = server, request, served
        self._parts, self._error_body, self._batch = parts, error_body, batch
        self._responses: list[InferResponse | None] = [None] * len(parts)
        self._tickets: dict[int, Ticket] = {}
        self._next = self._running = 0
        self._filling = self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, finish: Callable[[HttpResponse], None]) -> None:
        self._finish = finish
        self._server.metrics.in_flight += 1
        self._request.on_abandon = lambda: self._end(Cancelled("the client disconnected"))
        timeout_s = self._server.predict_limits.timeout_s
        if timeout_s and len(self._parts) > 1:  # a single part has its own time limit
            late = f"the batch took longer than {timeout_s:g} s (--inference-timeout-s)"
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_s, lambda: self._end(DeadlineExceeded(late)))
        self._fill()

    def _fill(self) -> None:
        """Submit parts up to the limit. Responses may arrive within `_submit`: those must not re-enter this."""
        self._filling = True
        while self._next < len(self._parts) and self._running < MAX_SUBMITTED and not self._ended:
            self._submit(self._next)
        self._filling = False
        if self._next == len(self._parts) and not self._running:
            self._end(None)

    def _submit(self, index: int) -> None:
        self._next, self._running = self._next + 1, self._running + 1
        infer_request = self._parts[index].request
        infer_request.request_id = self._request.headers.get(HEADER_REQUEST_ID, "")
        try:
            ticket = self._served.infer(infer_request, partial(self._done, index), self._server.predict_limits)
        except BadRequest as error:
            self._end(InvalidInput(str(error)))
        except Exception as error:
            self._end(error)
        else:
            if self._responses[index] is None:
                self._tickets[index] = ticket

    def _done(self, index: int, result: InferResponse | Exception) -> None:
        self._tickets.pop(index, None)
        self._running -= 1
        if isinstance(result, Exception):
            self._end(result)
        elif not self._ended:
            self._responses[index] = result
            if not self._filling:
                self._fill()

    def _end(self, error: Exception | None) -> None:
        """End once: cancel queued parts, and send the response or the error."""
        if self._ended:
            return
        self._ended, self._request.on_abandon = True, None
        if self._timer is not None:
            self._timer.cancel()
        for ticket in list(self._tickets.values()):
            ticket.cancel()
        if error is not None:
            self._send(error_response(self._error_body, error, self._request))
        elif is_long(*self._responses):
            spawn(self._send_encoded())
        else:
            self._send(self._make_response())

    def _make_response(self) -> HttpResponse:
        responses = [response for response in self._responses if response is not None]
        version = self._server.versions.label(self._served.name, self._served.version)
        seconds = perf_counter() - self._request.started
        try:
            body = encode_predictions(self._parts, responses, batch=self._batch, version=version, seconds=seconds)
            return HttpResponse(200, body)
        except Exception as error:
            return error_response(self._error_body, error, self._request)

    async def _send_encoded(self) -> None:
        self._send(await self._server.codecs.run(self._make_response))

    def _send(self, response: HttpResponse) -> None:
        self._server.observe(self._served, NAME, response.status, perf_counter() - self._request.started)
        self._finish(response)


class StreamMessage:
    """Message in flight: its request, and the future of its response.

    The request refers to the future, not to this object: a cycle would hold up to 10 MB until garbage collection.
    """

    def __init__(self, session: WebSocketSession, text: Buffer) -> None:
        upgrade = session.request
        self.response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        future = self.response
        self.finish: Callable[[HttpResponse], None] = lambda response: (
            None if future.done() else future.set_result(response)
        )
        self.request = HttpRequest(
            upgrade.method, upgrade.path, upgrade.query, upgrade.headers, text, upgrade.peer, self.finish,
            perf_counter(),
        )  # fmt: skip
        self.later: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        self.request.abandon()
        if self.later is not None:
            self.later.cancel()


class PredictStream:
    """WebSocket /predict/stream: each message is a body of /predict, responses are sent in order.

    One task receives and submits, one sends, so that a client may pipeline. A slot is acquired before a message is read
    and released when its response is sent: without one nothing is read, and TCP flow control holds the client back.
    """

    def __init__(self, server: Server, session: WebSocketSession, begin: Begin) -> None:
        self._server, self._session, self._begin = server, session, begin
        self._idle_s = server.settings.performance.stream_idle_timeout_s
        rate = server.predict_limits.messages_per_second
        self._rate, self._bucket = rate, TokenBuckets(1)
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
            if self._rate and (wait := self._bucket.acquire("", self._rate, self._rate, monotonic())):
                limit = f"{self._rate} messages a second (safeguards.rate_limit.messages_per_second)"
                raise RateLimited(f"more than {limit}", int(wait) + 1)
            outcome = self._begin(self._server, message.request, error_body)
        except Exception as error:
            self._refuse(message, error)
        else:
            if outcome is not None:
                message.later = asyncio.get_running_loop().create_task(self._finish_later(message, outcome))

    async def _finish_later(self, message: StreamMessage, outcome: Awaitable[HttpResponse]) -> None:
        try:
            message.finish(await outcome)
        except Exception as error:
            self._refuse(message, error)

    def _refuse(self, message: StreamMessage, error: Exception) -> None:
        response = error_response(error_body, error, message.request)
        self._server.observe_rejected(NAME, {}, response.status, perf_counter() - message.request.started)
        message.finish(response)

    async def _send(self) -> None:
        """Send responses in order; an internal error closes the connection."""
        while (message := await self._waiting.get()) is not None:
            response = await message.response
            self._messages.discard(message)
            if response.status == 500:
                await self._session.close(INTERNAL, "internal error; see the server's log")
                return
            assert isinstance(response.body, list)
            await self._session.send(b"".join(response.body))
            self._slots.release()
