"""Responses of one stream, in the order of its requests, several of which run concurrently.

A request to a decoupled model leaves that order: its responses are sent as they are produced and do not block others.
Writers are held back to the speed at which the client reads.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest, Messages, Responses, StreamHandler, UnaryCall
from pilotlight_predictor.server.handler_context import Server

PARTS_AHEAD: Final = 16  # buffered responses of decoupled requests
# Returns the only or last response, or b"".
Responder = Callable[[Buffer, "OrderedResponseWriter"], Coroutine[Any, Any, bytes]]


def in_request_order(messages: Messages, respond: Responder, ahead: int) -> AsyncIterator[bytes]:
    """Respond to each message, with at most `ahead` requests in flight."""
    return _OrderedStream(messages, respond, ahead).run()


def unary_stream(ahead: int) -> StreamHandler:
    """Return a handler that responds to each message with the unary one; an error ends the stream."""

    def stream(_: Server, request: GrpcRequest, messages: Messages, call_unary: UnaryCall) -> Responses:
        async def respond(message: Buffer, _: OrderedResponseWriter) -> bytes:
            part = request.next_message()
            part.body = message
            return await call_unary(part)

        return in_request_order(messages, respond, ahead)

    return stream


class OrderedResponseWriter:
    """Writer for all responses of one request but its last."""

    def __init__(self, stream: "_OrderedStream") -> None:
        self._stream = stream
        self.read_lock = stream.read_lock
        self.task: asyncio.Task[bytes] | None = None
        self.in_order = True

    async def write(self, response: bytes) -> None:
        """Queue a response; wait while the client reads slowly."""
        self.leave_order()
        await self._stream.put_part(response)

    def leave_order(self) -> None:
        if self.in_order:
            self.in_order = False
            self._stream.left_order(self)


class _OrderedStream:
    def __init__(self, messages: Messages, respond: Responder, ahead: int) -> None:
        self._messages, self._respond = messages, respond
        self._order: deque[OrderedResponseWriter] = deque()
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._slots, self._part_slots = asyncio.Semaphore(ahead), asyncio.Semaphore(PARTS_AHEAD)
        self._out: asyncio.Queue[tuple[Callable[[], bytes], asyncio.Semaphore] | None] = asyncio.Queue()
        self._all_read = False
        self.read_lock = asyncio.Lock()  # held while a message is decoded: a short one must not overtake a long one

    async def run(self) -> AsyncIterator[bytes]:
        reader = asyncio.ensure_future(self._read())
        try:
            while (entry := await self._out.get()) is not None:
                result, slot = entry
                if response := result():
                    yield response
                slot.release()
            await reader
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()

    async def _read(self) -> None:
        try:
            async for message in self._messages:
                await self._slots.acquire()
                writer = OrderedResponseWriter(self)
                self._order.append(writer)
                writer.task = task = asyncio.ensure_future(self._respond(message, writer))
                self._tasks.add(task)
                task.add_done_callback(partial(self._request_done, writer))
        finally:
            self._all_read = True
            self._end_if_done()

    def _request_done(self, writer: OrderedResponseWriter, _: object) -> None:
        if not writer.in_order:
            self._put_last(writer)
        self._flush()

    def left_order(self, writer: OrderedResponseWriter) -> None:
        self._order.remove(writer)
        self._flush()

    def _flush(self) -> None:
        while self._order and self._order[0].task is not None and self._order[0].task.done():
            self._put_last(self._order.popleft())
        self._end_if_done()

    def _put_last(self, writer: OrderedResponseWriter) -> None:
        assert writer.task is not None
        self._tasks.discard(writer.task)
        self._out.put_nowait((writer.task.result, self._slots))

    async def put_part(self, response: bytes) -> None:
        await self._part_slots.acquire()
        self._out.put_nowait((lambda: response, self._part_slots))

    def _end_if_done(self) -> None:
        if self._all_read and not self._tasks:
            self._out.put_nowait(None)
