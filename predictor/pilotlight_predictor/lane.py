"""The fast lane: a small HTTP/1.1 protocol for plain, counted requests on hot routes.

A connection starts here. The first request that is anything else (chunked, an upgrade, another route, an odd byte)
takes the whole connection, with the bytes read so far, to aiohttp's own handler, once no answer is outstanding.
What a request means is decided by the same dispatcher either way.
"""

import asyncio
from time import monotonic, perf_counter
from typing import Any, Final, Protocol, cast

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT, HEADER_TRACESTATE
from pilotlight.wire.http1 import END, MAX_HEAD, Buffer, Head, parse_head, render_head
from pilotlight_predictor.calls import Call, Reply

READ_AHEAD: Final = 1 << 18  # bytes of pipelined requests held while one is being answered
SLOW_S: Final = 30.0  # a request that takes longer to arrive, beyond what LEAST_RATE allows, is a slow-loris client's
LEAST_RATE: Final = 1 << 14  # bytes a second: 64 MiB may take 68 minutes, a stalled body 30 seconds
IDLE_S: Final = 75.0
JOIN_BELOW: Final = 1 << 14  # small bodies are cheaper to copy behind their head than to write apart


class Front(Protocol):
    """What the lane needs of the server; a booting one answers what it can."""

    lanes: "set[Lane]"
    closing: bool

    def match(self, method: str, path: str) -> Any | None:
        """The route when this lane may serve it, else None."""

    def admits(self, head: Head, peer: str, match: Any) -> bool:
        """Whether the caller may do this; asked before a body is read. A refusal is aiohttp's to say."""

    def reserve(self, length: int) -> int | None:
        """The bytes reserved for a body of this length; None: refused, which is aiohttp's to say."""

    def release(self, length: int) -> None: ...
    def serve(self, call: Call, match: Any) -> None: ...
    def hand_over(self, lane: "Lane") -> None: ...


class Lane(asyncio.Protocol):
    __slots__ = (
        "_body", "_buffer", "_call", "_clogged", "_filled", "_half", "_head", "_head_bytes", "_held", "_match",
        "_paused", "_unsent", "busy_since", "front", "peer", "transport",
    )  # fmt: skip

    def __init__(self, front: Front) -> None:
        self.front = front
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.busy_since = monotonic()  # since when a request is incomplete, an answer stuck, or the connection idle
        self._buffer: bytes = b""
        self._head_bytes: bytes = b""
        self._head: Head | None = None
        self._match: Any = None
        self._body: bytearray | None = None
        self._filled = 0
        self._held = 0
        self._call: Call | None = None
        self._paused = False
        self._half = False  # the head of the next request has begun to arrive
        self._clogged = False  # the client does not read: no further request is served until it does
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        address = transport.get_extra_info("peername")
        self.peer = address[0] if address else ""
        self.front.lanes.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.front.lanes.discard(self)
        self.transport = None
        call, self._call = self._call, None
        if call is not None:
            call.abandon()
        self._release()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            self._fill(data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._call is None:
            self._next()
        if len(self._buffer) > READ_AHEAD and not self._paused and (self._call is not None or self._clogged):
            self._paused = True
            self.hold()

    def _next(self) -> None:
        """Serves the request at the front of the buffer, if its head is whole and plain."""
        buffer = self._buffer
        if not buffer or self._call is not None or self._clogged or self.transport is None:
            return
        end = buffer.find(END)
        if end < 0:
            self._wait_for_head(buffer)
            return
        self._half = False
        if not 0 < end <= MAX_HEAD or not self._read_head(buffer[:end]):
            self._leave()
            return
        assert self._head is not None
        if not self.front.admits(self._head, self.peer, self._match):
            self._leave()
            return
        length = self._head.length
        if not length:
            self._buffer = buffer[end + 4 :]
            self._serve(b"")
        elif (held := self.front.reserve(length)) is None:
            self._leave()
        else:
            self._held = held
            self._take_body(buffer, end + 4, length)

    def _wait_for_head(self, buffer: bytes) -> None:
        if len(buffer) > MAX_HEAD or not buffer[:1].isalpha():
            self._leave()
        elif not self._half:
            self._half, self.busy_since = True, monotonic()

    def _read_head(self, head: bytes) -> bool:
        """A client on a kept connection repeats its head, so the last one is remembered with its route."""
        if head == self._head_bytes:
            return True
        parsed = parse_head(head)
        match = self.front.match(parsed.method, parsed.path) if parsed is not None else None
        if match is None:
            return False
        self._head_bytes, self._head, self._match = head, parsed, match
        return True

    def _take_body(self, buffer: bytes, start: int, length: int) -> None:
        if len(buffer) - start >= length:
            self._buffer = buffer[start + length :]
            self._serve(buffer[start : start + length])
            return
        self.busy_since = monotonic()
        self._body, self._filled, self._buffer = bytearray(length), 0, b""
        self._fill(buffer[start:])

    def _fill(self, data: bytes) -> None:
        """A large body is collected in place: one copy per byte."""
        body = self._body
        assert body is not None
        room = len(body) - self._filled
        if len(data) > room:
            self._buffer = data[room:]
            data = data[:room]
        body[self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        if self._filled == len(body):
            self._body = None
            self._serve(body)

    def _serve(self, body: Buffer) -> None:
        head = self._head
        assert head is not None
        call = Call(head.method, head.path, head.query, head.headers, body, self.peer, self._finish, perf_counter())
        self._call = call
        self.front.serve(call, self._match)

    def _finish(self, reply: Reply) -> None:
        """Writes the reply and goes on with what has arrived meanwhile."""
        call, self._call = self._call, None
        self._release()
        if self.transport is None or call is None or self._head is None:
            return
        close = self.front.closing or not self._head.keep_alive
        self._write(call, reply, close)
        if close:
            self.transport.close()
            return
        self.busy_since = monotonic()
        self._go_on()

    def _go_on(self) -> None:
        if self._clogged or self.transport is None:
            return
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._next)

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False
        if self._call is None:
            self._go_on()

    def _write(self, call: Call, reply: Reply, close: bool) -> None:
        assert self.transport is not None
        assert isinstance(reply.body, list)
        headers = with_request_id(call, reply)
        length = 0
        for piece in reply.body:
            length += len(piece)
        head = render_head(reply.status, reply.content_type, length, headers, close)
        if length <= JOIN_BELOW:
            self.transport.write(b"".join((head, *reply.body)))
        else:
            self.transport.writelines([head, *(piece for piece in reply.body if len(piece))])

    def _release(self) -> None:
        if self._held:
            self.front.release(self._held)
            self._held = 0

    def _leave(self) -> None:
        self.front.hand_over(self)

    def take_over(self, handler: asyncio.Protocol) -> None:
        """Gives the connection and all that was read to another protocol."""
        transport, buffer = self.transport, self._buffer
        if transport is None:
            return
        self.front.lanes.discard(self)
        self._buffer, self.transport = b"", None
        transport.set_protocol(handler)
        handler.connection_made(transport)
        transport.resume_reading()
        if buffer:
            handler.data_received(buffer)

    def hold(self) -> None:
        """Reads no further until somebody takes the connection over."""
        if self.transport is not None:
            self.transport.pause_reading()

    def forget_route(self) -> None:
        """The routes have changed: the next request is matched anew."""
        self._head_bytes = b""

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def end_if_overdue(self, now: float) -> None:
        """Closes a connection that is idle too long, whose request does not come, or whose client does not read."""
        if self.transport is None or self._call is not None:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self.busy_since = unsent, now
        waited = now - self.busy_since
        if unsent and waited > SLOW_S:
            self.transport.abort()  # closing would wait for the client to read
        elif waited > (IDLE_S if self.idle else SLOW_S + self._filled / LEAST_RATE):
            self.transport.close()

    @property
    def idle(self) -> bool:
        """Nothing is asked, nothing is being answered, and every answer has left."""
        if self._call is not None or self._body is not None or self._buffer:
            return False
        return self.transport is None or self.transport.get_write_buffer_size() == 0

    @property
    def fresh(self) -> bool:
        """Nothing has arrived on it yet."""
        return self._head is None and self.idle


def with_request_id(call: Call, reply: Reply) -> dict[str, str] | None:
    """Replies carry the request's id and trace context, so that a client can find itself in our logs."""
    headers = dict(reply.headers) if reply.headers else None
    request_id = call.headers.get(HEADER_REQUEST_ID)
    if request_id is not None and request_id.isascii():
        headers = {**(headers or {}), HEADER_REQUEST_ID: request_id}
    if HEADER_TRACEPARENT in call.headers:
        headers = {**(headers or {}), **_trace(call)} or None
    return headers


def _trace(call: Call) -> dict[str, str]:
    """W3C trace context as it may be passed on: nothing of it when it is malformed."""
    from pilotlight_predictor.tracing import accept

    parent, state = accept(call.headers[HEADER_TRACEPARENT], call.headers.get(HEADER_TRACESTATE, ""))
    passed = {HEADER_TRACEPARENT: parent, HEADER_TRACESTATE: state}
    return {name: value for name, value in passed.items() if value}
