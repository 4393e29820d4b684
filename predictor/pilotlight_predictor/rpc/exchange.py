"""One gRPC call: an HTTP/2 stream from its headers to its trailers.

The connection opens it and passes it the bytes of its request; `head.handler` produces the responses. A unary call with
an immediate response needs no task, future or timer: it ends within `on_data`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2.flow import STREAM_WINDOW
from pilotlight_predictor.errors import DeadlineExceeded, NotReady, PredictorError
from pilotlight_predictor.rpc.call_head import CallHead
from pilotlight_predictor.rpc.desk import PendingResponse
from pilotlight_predictor.rpc.inbox import MessageQueue
from pilotlight_predictor.rpc.intake import CallConnection, MessageReader
from pilotlight_predictor.rpc.service import GrpcRequest
from pilotlight_predictor.rpc.statuses import GrpcErrorResponse


class GrpcCall(MessageReader):
    """Server side of one call: deadline, task, responses and trailers."""

    __slots__ = ("_deadline", "_drop", "_task", "_timer", "_writable", "headers_sent")

    def __init__(self, connection: CallConnection, number: int, head: CallHead, *, ended: bool) -> None:
        super().__init__(number, connection.http.out.initial_window, STREAM_WINDOW, ended=ended)
        self._connection, self.head = connection, head
        self.headers_sent = self.over = False
        self.request = self._reassembler = self._arrival_timer = self._queue = self._message = None
        self._reserved = self._window_owed = 0
        self._task: asyncio.Task[None] | None = None
        self._drop: Callable[[], None] | None = None  # until the task has had its first step
        self._timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._deadline = None if head.timeout is None else perf_counter() + head.timeout

    @property
    def peer(self) -> str:
        return self._connection.peer

    def time_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - perf_counter()

    def start(self) -> None:
        """Authorize the caller before any message is read, and start the handler of a stream."""
        handler = self.head.handler
        if not handler.checks_caller and not handler.streams:
            return
        self.request = handler.new_request(self)
        error = handler.authorize(self.request)
        if error is not None:
            self.send_error(error)
        elif handler.streams:
            self._queue = MessageQueue(self._account, self._connection.codecs)
            self._drop = partial(handler.cancelled, self.request)
            self.run(self._run_stream(self.request, self._queue))

    async def _run_stream(self, request: GrpcRequest, queue: MessageQueue) -> None:
        self._drop = None
        await self.head.handler.stream(request, queue, self)

    def reject(self, error: PredictorError) -> None:
        """End the call with an error before its handler has run."""
        handler = self.head.handler
        self.send_error(handler.reject(self.request or handler.new_request(self), error))

    def handle_message(self, message: Buffer) -> None:
        handler = self.head.handler
        request = self.request = self.request or handler.new_request(self)
        request.body = message
        outcome = handler.respond(request)
        if isinstance(outcome, bytes):
            self._connection.respond(self, outcome)
        elif isinstance(outcome, GrpcErrorResponse):
            self.send_error(outcome)
        else:
            self._drop = outcome.drop
            self.run(self._finish_pending(outcome))

    async def _finish_pending(self, outcome: PendingResponse) -> None:
        self._drop = None
        response = await outcome.run()
        if isinstance(response, GrpcErrorResponse):
            self.send_error(response)
        elif not self.over:
            self._connection.respond(self, response)
            self._connection.flush_soon()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self.start_deadline()

    def start_deadline(self) -> None:
        if self._timer is None and (left := self.time_left()) is not None:
            self._timer = asyncio.get_running_loop().call_later(left, self._expire)

    def _expire(self) -> None:
        self._deadline = perf_counter()
        if self._task is None:
            self.reject(DeadlineExceeded("the call's deadline has passed"))
        else:
            self.fail("DEADLINE_EXCEEDED", "the call's deadline has passed")

    async def write(self, response: bytes) -> None:
        """Send one of several responses; wait while the client reads slowly."""
        if self.over:
            return
        self._connection.send(self, response)
        self._connection.flush_soon()
        if self.pending:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    def finish(self) -> None:
        """End the call with OK."""
        if self.over:
            return
        if not self.headers_sent:
            self._connection.http.out.head(self, self._connection.blocks.head())
        self._end(self._connection.blocks.success(waits=bool(self.pending)))

    def send_error(self, error: GrpcErrorResponse) -> None:
        self.fail(error.code, error.message, error.trailers)

    def fail(self, code: str, message: str, trailers: tuple[tuple[str, str], ...] = ()) -> None:
        if self.over:
            return
        waits = bool(self.pending)
        self._end(self._connection.blocks.failure(code, message, trailers, headed=self.headers_sent, waits=waits))

    def _end(self, block: bytes) -> None:
        self._connection.http.out.end(self, block)
        self._connection.flush_soon()
        self.settle()

    def settle(self) -> None:
        """Cancel timers and the task, unless it is the caller, and release the reserved bytes: the call is decided."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._arrival_timer is not None:
            self._arrival_timer.stop()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            if self._drop is not None:
                self._drop()
        if self._reserved:
            self._release()
        # Break the reference cycles, so that the request's memory is freed without waiting for the garbage collector.
        self.request = self._queue = self._reassembler = self._message = self._arrival_timer = self._drop = None

    def on_reset(self) -> None:
        if not self.over:
            self.settle()
        self.on_drained()

    def on_drained(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def end_stream(self) -> None:
        """End a stream after its queued messages because the server is stopping."""
        if self._queue is not None:
            self._queue.end(NotReady("the server is stopping; open another stream"))
