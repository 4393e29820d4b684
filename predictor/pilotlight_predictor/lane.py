"""The fast lane: a small HTTP/1.1 protocol for plain, counted requests on hot routes.

A connection starts here. The first request that is anything else (chunked, an upgrade, another route, an odd byte)
takes the whole connection, with the bytes read so far, to aiohttp's own handler, once no answer is outstanding.
What a request means is decided by the same dispatcher either way.
"""

import asyncio
from time import monotonic, perf_counter
from typing import Final, cast

from pilotlight.wire.http1 import END, MAX_HEAD, Buffer
from pilotlight_predictor.calls import Call, Reply, with_request_id
from pilotlight_predictor.lane_body import LARGE, ArrivingBody, arriving
from pilotlight_predictor.lane_head import Front, KnownHead, read_head
from pilotlight_predictor.lane_patience import patience_s
from pilotlight_predictor.lane_reply import write_reply

READ_AHEAD: Final = 1 << 18  # bytes of pipelined requests held while one is being answered
ALONE_FROM: Final = 16  # requests in a row on one connection: nobody else is there to share a batch with


class Lane(asyncio.Protocol):
    __slots__ = (
        "_body", "_buffer", "_call", "_clogged", "_half", "_held", "_in_a_row", "_known", "_paused", "_unsent",
        "busy_since", "front", "peer", "transport",
    )  # fmt: skip

    def __init__(self, front: Front) -> None:
        self.front = front
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.busy_since = monotonic()  # since when a request is incomplete, an answer stuck, or the connection idle
        self._buffer: bytes = b""
        self._known: KnownHead | None = None  # the last one
        self._body: ArrivingBody | None = None
        self._held = 0
        self._call: Call | None = None
        self._in_a_row = 0  # requests that came here while no other connection had any
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
        self._part()
        self.transport = None
        self._body = None
        call, self._call = self._call, None
        if call is not None:
            call.abandon()
        self._release()

    def _part(self) -> None:
        self.front.lanes.discard(self)
        if self.front.speaker is self:
            self.front.speaker = None

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            self._fill(self._body, data)
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
        known = self._known
        if known is None or not known.text or not buffer.startswith(known.text):
            known = self._meet(buffer)
            if known is None:
                return
        elif known.asks and not self.front.admits(known.head, self.peer, known.match):
            self._leave()
            return
        self._half = False
        if known.whole == known.start:
            self._buffer = buffer[known.start :]
            self._serve(b"")
        elif (held := self.front.reserve(known.whole - known.start)) is None:
            self._leave()
        elif len(buffer) == known.whole:
            self._held, self._buffer = held, b""
            self._serve(buffer[known.start :])
        else:
            self._held = held
            self._take_body(buffer, known)

    def _meet(self, buffer: bytes) -> KnownHead | None:
        """Reads a head that is not the last one's; None when it is not whole, or for aiohttp to judge."""
        end = buffer.find(END)
        if end < 0:
            self._wait_for_head(buffer)
            return None
        found = read_head(self.front, self.peer, buffer[:end]) if 0 < end <= MAX_HEAD else None
        if found is None:
            self._leave()
        else:
            self._known = found
        return found

    def _wait_for_head(self, buffer: bytes) -> None:
        if len(buffer) > MAX_HEAD or not buffer[:1].isalpha():
            self._leave()
        elif not self._half:
            self._half, self.busy_since = True, monotonic()

    def _take_body(self, buffer: bytes, known: KnownHead) -> None:
        if len(buffer) > known.whole:
            self._buffer = buffer[known.whole :]
            self._serve(buffer[known.start : known.whole])
            return
        assert self.transport is not None
        self.busy_since = monotonic()
        start_of_body = memoryview(buffer)[known.start :]
        self._body = body = arriving(known.head, start_of_body, self, self._whole, in_place=self._held > 0)
        self._buffer = b""
        if body.missing >= LARGE:
            body.read_from(self.transport)

    def _fill(self, body: ArrivingBody, data: bytes) -> None:
        used = body.feed(data)
        if not body.missing:
            self._buffer = data[used:]
            body.end()

    def _whole(self, body: Buffer) -> None:
        self._body = None
        self._serve(body)

    def _serve(self, body: Buffer) -> None:
        known, front = self._known, self.front
        assert known is not None
        method, path, query, headers, _, _ = known.head
        self._call = call = Call(method, path, query, headers, body, self.peer, self._finish, perf_counter())
        if front.speaker is self:
            self._in_a_row += 1
            call.alone = self._in_a_row >= ALONE_FROM
        else:
            front.speaker, self._in_a_row = self, 0
        known.serve(call, known.match)

    def _finish(self, reply: Reply) -> None:
        """Writes the reply and goes on with what has arrived meanwhile."""
        call, self._call = self._call, None
        if self._held:
            self.front.release(self._held)
            self._held = 0
        known, transport = self._known, self.transport
        if transport is None or call is None or known is None:
            return
        close = self.front.closing or not known.head.keep_alive
        headers = with_request_id(call, reply) if known.echoes or reply.headers else None
        write_reply(transport, reply, headers, close)
        if close:
            transport.close()
            return
        self.busy_since = monotonic()
        if self._buffer or self._paused:
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
        self._part()
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
        if self._known is not None:
            self._known.text = b""

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
        arrived = None if self.idle else self._body.filled if self._body is not None else 0
        if now - self.busy_since > patience_s(arrived, unsent):
            # Closing would wait for the client to read.
            self.transport.abort() if unsent else self.transport.close()

    @property
    def idle(self) -> bool:
        """Nothing is asked, nothing is being answered, and every answer has left."""
        if self._call is not None or self._body is not None or self._buffer:
            return False
        return self.transport is None or self.transport.get_write_buffer_size() == 0

    @property
    def fresh(self) -> bool:
        """Nothing has arrived on it yet."""
        return self._known is None and self.idle
