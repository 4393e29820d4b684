"""One gRPC call: an HTTP/2 stream from its headers over its messages to its trailers.

The connection opens it and passes it the bytes of its request; `head.handler` produces the responses. A unary call with
an immediate response needs no task, future or timer: it ends within `on_data`. Partial, queued and decompressing
messages count as bytes in flight.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2.connection import Http2Connection
from pilotlight.wire.http2.frames import PROTOCOL_ERROR
from pilotlight.wire.http2.streams import STREAM_WINDOW, Http2Stream
from pilotlight_predictor.core.threads import ThreadLimiter
from pilotlight_predictor.errors import (
    Cancelled,
    DeadlineExceeded,
    NotReady,
    PredictorError,
    QueueFull,
    Unreadable,
    Unsupported,
)
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.grpc import response_compression
from pilotlight_predictor.frontends.grpc.dispatcher import (
    GrpcErrorResponse,
    GrpcRequest,
    MethodHandler,
    PendingResponse,
)
from pilotlight_predictor.frontends.grpc.headers import CallHead, ResponseHeaderBlocks
from pilotlight_predictor.frontends.grpc.message_reader import (
    INLINE_BYTES,
    PREFIX,
    STEP_BYTES,
    ArrivalTimer,
    CompressedMessage,
    MessageQueue,
    Reassembler,
    RejectedMessage,
)

SMALL: Final = 1 << 14  # bytes of a message that is copied behind its prefix, and sent whatever the byte budget
WINDOW_UPDATE_MIN: Final = STREAM_WINDOW // 2  # bytes for which a WINDOW_UPDATE is sent


class CallConnection(Protocol):
    """Connection as a call needs it."""

    http: Http2Connection
    blocks: ResponseHeaderBlocks
    peer: str
    admission: Admission
    codecs: ThreadLimiter
    max_message: int

    def respond(self, call: Any, message: bytes, compressed: int = 0) -> None: ...
    def send(self, call: Any, message: bytes, compressed: int = 0) -> None: ...
    def flush_soon(self) -> None: ...
    def release_when_written(self, length: int) -> None: ...


class GrpcCall(Http2Stream):
    """Server side of one call: request messages, deadline, task, responses and trailers."""

    __slots__ = (
        "_arrival_timer", "_connection", "_deadline", "_drop", "_message", "_queue", "_reassembler", "_received",
        "_reserved", "_task", "_timer", "_unsent", "_window_owed", "_writable", "head", "headers_sent", "over",
        "request",
    )  # fmt: skip
    request: GrpcRequest | None
    _reassembler: Reassembler | None
    _arrival_timer: ArrivalTimer | None
    _queue: MessageQueue | None
    _message: Buffer | CompressedMessage | None

    def __init__(self, connection: CallConnection, number: int, head: CallHead, *, ended: bool) -> None:
        super().__init__(number, connection.http.out.initial_window, STREAM_WINDOW, ended=ended)
        self._connection, self.head = connection, head
        self.headers_sent = self.over = False
        self.request = self._reassembler = self._arrival_timer = self._queue = self._message = None
        self._received = self._reserved = self._unsent = self._window_owed = 0
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
            self._run(self._run_stream(handler, self.request, self._queue))

    async def _run_stream(self, handler: MethodHandler, request: GrpcRequest, queue: MessageQueue) -> None:
        self._drop = None
        await handler.stream(request, queue, self)

    def on_data(self, data: Buffer, start: int, end: int) -> None:
        if self.over or (self.head.length is not None and self._contradicts_length(self.head.length, end - start)):
            return
        # Fast path: the whole message in the only DATA frame, as most unary calls send it.
        if self.ended and self._reassembler is None and self._queue is None and end - start >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data, start)
            if not compressed and start + PREFIX.size + length == end and length <= self._connection.max_message:
                self.handle_message(bytes(data[start + PREFIX.size : end]))
                return
        self._reassemble(data, start, end)

    def _contradicts_length(self, declared: int, more: int) -> bool:
        """Reset a call whose DATA is not as long as its content-length says (RFC 9113, 8.1.1)."""
        self._received += more
        if self._received == declared or (self._received < declared and not self.ended):
            return False
        self.on_reset()
        self._connection.http.reset(self, PROTOCOL_ERROR)
        return True

    def _reassemble(self, data: Buffer, start: int, end: int) -> None:
        """Handle data of a message in several frames, or of a stream."""
        reassembler = self._reassembler
        if reassembler is None:
            reassembler = self._reassembler = Reassembler(self._connection.max_message, self.head.encoding)
        before = reassembler.partial
        self._window_owed += end - start
        try:
            for message in reassembler.feed(data, start, end):
                if self._queue is not None:
                    self._queue.put(message)
                elif self._message is not None:
                    raise Unsupported("the method takes one message, and the call has several")
                else:
                    self._message = message
            if self.ended:
                self._messages_complete(reassembler)
            else:
                self._account()
                partial = reassembler.partial
                if self._arrival_timer is None or (partial is not None and partial is not before):
                    self._start_arrival_timer()
        except QueueFull as error:
            self._shed_messages(reassembler, error)
        except PredictorError as error:
            self.reject(error)

    def _shed_messages(self, reassembler: Reassembler, error: QueueFull) -> None:
        """Reject messages of a stream, the newest first, until the rest fits the byte budget; the stream continues."""
        queue = self._queue
        while queue is not None and self.head.handler.can_reject_message:
            if reassembler.size:
                reassembler.skip()
                queue.put(RejectedMessage.from_error(error))
            elif not queue.reject_newest(error):
                break
            with suppress(QueueFull):
                self._account()
                if self.ended:
                    queue.end()
                return
        self.reject(error)

    def _start_arrival_timer(self) -> None:
        """Start timing the arrival of a message, and the deadline, since the call may have no task yet."""
        if self._arrival_timer is None:
            self._arrival_timer = ArrivalTimer(
                self._bytes_received,
                lambda: self.reject(Cancelled("the message stopped arriving")),
                lambda: self._connection.admission.slow_s,
            )
            self._start_deadline()
        self._arrival_timer.message_started()

    def _bytes_received(self) -> int | None:
        assert self._reassembler is not None
        if self._queue is not None and (self._reassembler.partial is None or self._reassembler.skipping):
            return None
        return self._reassembler.size + len(self._message or b"")

    def _messages_complete(self, reassembler: Reassembler) -> None:
        message = self._message
        if reassembler.in_message:
            raise Unreadable("the call ends in the middle of a message")
        if self._queue is not None:
            self._account()
            self._queue.end()
            return
        if message is None:
            raise Unreadable("the call has no message")
        if self._arrival_timer is not None:
            self._arrival_timer.stop()
        plain = message.decompress(INLINE_BYTES) if isinstance(message, CompressedMessage) else message
        if plain is not None:
            self._release()
            self.handle_message(plain)
        elif isinstance(message, CompressedMessage):
            self._account()
            self._run(self._decompress_then_handle(message))

    async def _decompress_then_handle(self, compressed: CompressedMessage) -> None:
        """Decompress in a thread, step by step, and account for the output while it grows."""
        try:
            while (plain := await self._connection.codecs.run(lambda: compressed.decompress(STEP_BYTES))) is None:
                self._account()
        except PredictorError as error:
            self.reject(error)
            return
        self._release()
        self.handle_message(plain)
        self._connection.flush_soon()

    def _account(self) -> None:
        """Reserve the bytes held, and extend the client's send window unless messages queue up. Raise QueueFull."""
        if self.over:
            return
        queue, reassembler = self._queue, self._reassembler
        waiting = queue.size if queue is not None else len(self._message or b"")
        waiting += reassembler.size if reassembler else 0
        if waiting > self._reserved:
            self._connection.admission.take(waiting - self._reserved)
        else:
            self._connection.admission.release(self._reserved - waiting)
        self._reserved = waiting
        # A stream whose messages queue up gets no window, so that its client waits; updates are batched.
        if self._window_owed >= WINDOW_UPDATE_MIN and not self.ended and (queue is None or queue.empty):
            self._connection.http.grant(self, self._window_owed)
            self._window_owed = 0
            self._connection.flush_soon()

    def _release(self) -> None:
        self._connection.admission.release(self._reserved)
        self._reserved = 0

    def reject(self, error: PredictorError, *, counted: bool = False) -> None:
        """End the call with an error before its handler has run, or because its response is refused (`counted`)."""
        handler = self.head.handler
        self.send_error(handler.reject(self.request or handler.new_request(self), error, counted=counted))

    def handle_message(self, message: Buffer) -> None:
        handler = self.head.handler
        request = self.request = self.request or handler.new_request(self)
        request.body = message
        outcome = handler.respond(request)
        if isinstance(outcome, bytes):
            if self.head.response_encoding:
                self._run(self._compress_then_respond(outcome))
            else:
                self._connection.respond(self, outcome)
        elif isinstance(outcome, GrpcErrorResponse):
            self.send_error(outcome)
        else:
            self._drop = outcome.drop
            self._run(self._finish_pending(outcome))

    async def _finish_pending(self, outcome: PendingResponse) -> None:
        self._drop = None
        response = await outcome.run()
        if isinstance(response, GrpcErrorResponse):
            self.send_error(response)
        else:
            await self._compress_then_respond(response)

    async def _compress_then_respond(self, response: bytes) -> None:
        message, compressed = await self._compress(response)
        if not self.over:
            self._connection.respond(self, message, compressed)
            self._connection.flush_soon()

    async def _compress(self, response: bytes) -> tuple[bytes, int]:
        """Return a response as it is sent, and its compressed flag; long ones are compressed in a thread."""
        encoding = self.head.response_encoding
        if not encoding:
            return response, 0
        if len(response) <= response_compression.INLINE_BYTES:
            return response_compression.compress(response, encoding)
        return await self._connection.codecs.run(lambda: response_compression.compress(response, encoding))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the call's task."""
        self._task = asyncio.get_running_loop().create_task(work)
        self._start_deadline()

    def _start_deadline(self) -> None:
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
        message, compressed = await self._compress(response)
        if self.over:
            return
        self.send(message, compressed)
        self._connection.flush_soon()
        if self.pending:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    def send(self, response: bytes, compressed: int = 0) -> None:
        """Send a message; what waits for the client counts as bytes in flight. Raise QueueFull if it does not fit."""
        admission = self._connection.admission
        if len(response) > SMALL:
            admission.check_capacity(len(response))
        self._connection.send(self, response, compressed)
        if self.pending:  # all of it: a message stays in memory until its last byte is sent
            admission.bytes_in_flight += len(response)
            self._unsent += len(response)

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
        if self._unsent:
            self._connection.release_when_written(self._unsent)
            self._unsent = 0
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def end_stream(self) -> None:
        """End a stream after its queued messages because the server is stopping."""
        if self._queue is not None:
            self._queue.end(NotReady("the server is stopping; open another stream"))
