"""Request side of a gRPC call: from the bytes of its stream to messages, within the budget of bytes in flight.

A message that arrives in one frame is handled at once. Partial, queued and decompressing messages count as bytes in
flight.
"""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2.connection import Http2Connection
from pilotlight.wire.http2.flow import STREAM_WINDOW
from pilotlight.wire.http2.outgoing import Http2Stream
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.errors import Cancelled, PredictorError, QueueFull, Unreadable, Unsupported
from pilotlight_predictor.rpc.arrival import ArrivalTimer
from pilotlight_predictor.rpc.call_head import CallHead
from pilotlight_predictor.rpc.gathering import PREFIX, Reassembler
from pilotlight_predictor.rpc.inbox import MessageQueue
from pilotlight_predictor.rpc.packed import INLINE_BYTES, STEP_BYTES, CompressedMessage, RejectedMessage
from pilotlight_predictor.rpc.reply_blocks import ResponseHeaderBlocks
from pilotlight_predictor.rpc.service import GrpcRequest
from pilotlight_predictor.threads import ThreadLimiter

WINDOW_UPDATE_MIN: Final = STREAM_WINDOW // 2  # bytes for which a WINDOW_UPDATE is sent


class CallConnection(Protocol):
    """Connection as a call needs it."""

    http: Http2Connection
    blocks: ResponseHeaderBlocks
    peer: str
    admission: Admission
    codecs: ThreadLimiter
    max_message: int

    def respond(self, call: Any, message: bytes) -> None: ...
    def send(self, call: Any, message: bytes) -> None: ...
    def flush_soon(self) -> None: ...


class MessageReader(Http2Stream):
    """Base of GrpcCall: reads messages and passes them to `handle_message` or the queue."""

    __slots__ = (
        "_arrival_timer", "_connection", "_message", "_queue", "_reassembler", "_reserved", "_window_owed", "head",
        "over", "request",
    )  # fmt: skip

    # Set by the subclass: one more constructor would cost every call.
    _connection: CallConnection
    head: CallHead
    over: bool
    request: GrpcRequest | None
    _reassembler: Reassembler | None
    _arrival_timer: ArrivalTimer | None
    _queue: MessageQueue | None
    _message: Buffer | CompressedMessage | None
    _reserved: int
    _window_owed: int

    def handle_message(self, message: Buffer) -> None:
        """Handle the only message of a unary call."""

    def reject(self, error: PredictorError) -> None:
        """End the call with an error."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the call's task."""

    def start_deadline(self) -> None:
        """Start the timer of the client's deadline."""

    def on_data(self, data: Buffer, start: int, end: int) -> None:
        if self.over:
            return
        # Fast path: the whole message in the only DATA frame, as most unary calls send it.
        if self.ended and self._reassembler is None and self._queue is None and end - start >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data, start)
            if not compressed and start + PREFIX.size + length == end and length <= self._connection.max_message:
                self.handle_message(bytes(data[start + PREFIX.size : end]))
                return
        self._reassemble(data, start, end)

    def _reassemble(self, data: Buffer, start: int, end: int) -> None:
        """Handle data of a message in several frames, or of a stream."""
        reassembler = self._reassembler
        if reassembler is None:
            reassembler = self._reassembler = Reassembler(self._connection.max_message, self.head.encoding)
        before = reassembler.partial
        self._window_owed += end - start
        try:
            for message in reassembler.feed(data, start, end):
                self._put(message)
            if self.ended:
                self._complete(reassembler)
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
            self._arrival_timer = ArrivalTimer(self._bytes_received, self._stalled)
            self.start_deadline()
        self._arrival_timer.message_started()

    def _bytes_received(self) -> int | None:
        assert self._reassembler is not None
        if self._queue is not None and (self._reassembler.partial is None or self._reassembler.skipping):
            return None
        return self._reassembler.size + len(self._message or b"")

    def _stalled(self) -> None:
        self.reject(Cancelled("the message has stopped arriving"))

    def _put(self, message: Buffer | CompressedMessage) -> None:
        if self._queue is not None:
            self._queue.put(message)
        elif self._message is not None:
            raise Unsupported("the method takes one message, and the call has several")
        else:
            self._message = message

    def _complete(self, reassembler: Reassembler) -> None:
        if reassembler.in_message:
            raise Unreadable("the call ends within a message")
        if self._queue is not None:
            self._account()
            self._queue.end()
        elif self._message is None:
            raise Unreadable("the call has no message")
        else:
            if self._arrival_timer is not None:
                self._arrival_timer.stop()
            self._handle_complete(self._message)

    def _handle_complete(self, message: Buffer | CompressedMessage) -> None:
        plain = message.decompress(INLINE_BYTES) if isinstance(message, CompressedMessage) else message
        if plain is not None:
            self._release()
            self.handle_message(plain)
        elif isinstance(message, CompressedMessage):
            self._account()
            self.run(self._decompress_then_handle(message))

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
