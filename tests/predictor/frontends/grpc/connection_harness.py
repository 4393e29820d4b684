"""A connection of the gRPC port without a socket, on a clock that jumps: what takes half a minute takes no time."""

import asyncio
import selectors
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, cast

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.hpack import literal
from pilotlight_predictor.config import Limits, ServerSettings
from pilotlight_predictor.config.grpc_settings import GrpcSettings
from pilotlight_predictor.core.threads import ThreadLimiter
from pilotlight_predictor.errors import QueueFull
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Access, Action
from pilotlight_predictor.frontends.grpc.connection import GrpcConnection
from pilotlight_predictor.frontends.grpc.dispatcher import (
    GrpcDispatcher,
    GrpcRequest,
    Messages,
    Method,
    Service,
    UnaryCall,
)
from pilotlight_predictor.frontends.grpc.ordered_stream import OrderedResponseWriter, in_request_order
from pilotlight_predictor.frontends.http.access_log import RequestObserver
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.server.handler_context import Server

BUDGET = 1 << 20
NO_ROOM = b"no room"
DEFAULTS = GrpcSettings()
Answer = Callable[[GrpcRequest], bytes | Awaitable[bytes]]


class JumpingClock(asyncio.SelectorEventLoop):
    """Where nothing is left to do until a timer fires, it fires at once."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.now


class _Jumps(selectors.SelectSelector):
    def __init__(self, clock: JumpingClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        self._clock.now += timeout
        return super().select(0)


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Kitchen:
    """What a desk asks of a server; it notes the statuses that were counted."""

    def __init__(self) -> None:
        self.codecs = ThreadLimiter(2)
        self.counted: list[int] = []

    def observe_rejected(self, _: str, __: Any, status: int, ___: float) -> None:
        self.counted.append(status)


class Watched:
    """Notes the status of every call that was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def attach(self, call: HttpRequest, _: str) -> None:
        def tell(reply: HttpResponse) -> None:
            self.told.append(reply.status)

        call.finish = tell


class House:
    """One client: `/t.S/Ask` is answered by what is given here, `/t.S/Talk` repeats messages, or says NO_ROOM."""

    def __init__(
        self, answer: Answer = lambda call: bytes(call.body), budget: int = BUDGET, grpc: GrpcSettings = DEFAULTS
    ) -> None:
        self.kitchen, self.watched, self.wire = Kitchen(), Watched(), Wire()
        self.admission = Admission(Access(ServerSettings(grpc=grpc)), Limits(1 << 30, 0.0, None, None), budget)
        methods = (
            Method("Ask", Action.INFER, lambda _, call: answer(call)),
            Method("Talk", Action.INFER, lambda _, call: bytes(call.body), repeat),
        )
        self.desk = GrpcDispatcher(
            cast(Server, self.kitchen), self.admission, (Service("t.S", "grpc", methods),),
            lambda: cast(RequestObserver, self.watched),
        )  # fmt: skip
        self.line = GrpcConnection(self.desk, budget)
        self.line.connection_made(self.wire)
        self.hear(frames.PREFACE, frames.settings({frames.INITIAL_WINDOW_SIZE: frames.UINT31_MAX}))

    def hear(self, *parts: bytes) -> None:
        self.line.data_received(b"".join(parts))

    def said(self, number: int) -> list[tuple[int, bytes]]:
        """Kind and payload of all frames of a stream."""
        data, at, found = bytes(self.wire.written), 0, []
        while at < len(data):
            word, _, of = frames.HEAD.unpack_from(data, at)
            end = at + frames.HEAD_LENGTH + (word >> 8)
            if of == number:
                found.append((word & 0xFF, data[at + frames.HEAD_LENGTH : end]))
            at = end
        return found

    def answers(self, number: int) -> list[bytes]:
        """The messages of a stream."""
        text, at, found = b"".join(payload for kind, payload in self.said(number) if kind == frames.DATA), 0, []
        while at < len(text):
            end = at + 5 + int.from_bytes(text[at + 1 : at + 5], "big")
            found.append(text[at + 5 : end])
            at = end
        return found

    def status(self, number: int) -> str:
        """Of a call that is over; empty while it is not."""
        blocks = [payload for kind, payload in self.said(number) if kind == frames.HEADERS]
        spelled = [str(code) for code in range(17) if any(literal("grpc-status", str(code)) in each for each in blocks)]
        return spelled[0] if spelled else ""


def repeat(_: Server, call: GrpcRequest, messages: Messages, single: UnaryCall) -> AsyncIterator[bytes]:
    async def answer(message: Buffer, _: OrderedResponseWriter) -> bytes:
        asked = call.next_message()
        asked.body = message
        try:
            return await single(asked)
        except QueueFull:
            return NO_ROOM

    return in_request_order(messages, answer, 8)


def call(number: int, method: str = "Ask", *fields: tuple[str, str]) -> bytes:
    rows = ((":method", "POST"), (":scheme", "http"), (":path", f"/t.S/{method}"), ("content-type", "application/grpc"))
    return frames.frame(
        frames.HEADERS, frames.END_HEADERS, number, b"".join(literal(*field) for field in (*rows, *fields))
    )


def data(number: int, payload: bytes, *, ends: bool = False) -> bytes:
    return frames.frame(frames.DATA, frames.END_STREAM if ends else 0, number, payload)


def framed(message: bytes, length: int | None = None, packed: int = 0) -> bytes:
    return struct.pack(">BI", packed, len(message) if length is None else length) + message


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingClock) as runner:
        runner.run(scene())
