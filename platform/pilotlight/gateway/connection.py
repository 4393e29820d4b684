"""A client's connection: requests in, one after another, answers out in the same order.

The head decides where a request goes; then its body is read at the pace of whoever takes it. A request that comes
before the last one is answered stays in the buffer.
"""

import asyncio
from typing import TYPE_CHECKING, Final, cast

from pilotlight.gateway.departure import QUESTION, has_gone
from pilotlight.gateway.exchange import Exchange
from pilotlight.gateway.gate import Refusal
from pilotlight.gateway.pacing import Paced
from pilotlight.gateway.preparing import Prepared, prepare
from pilotlight.gateway.replies import NOT_READ_ONLY, TOO_LONG, TOO_SLOW, page, rendered
from pilotlight.gateway.routing import Key
from pilotlight.wire.bodies import Body, body_of
from pilotlight.wire.heads import MAX_HEAD, Malformed, parse_request
from pilotlight.wire.http1 import END

if TYPE_CHECKING:
    from pilotlight.gateway.plane import Plane

READ_AHEAD: Final = 1 << 18  # bytes of further requests, while one is being answered
KEPT_HEAD: Final = 1 << 12  # a longer head is read anew each time: idle connections are many
HEAD_S: Final = 30.0
IDLE_S: Final = 75.0
LINGER_S: Final = 5.0  # for a client that still sends what will not be read to notice the answer


class Client(Paced):
    __slots__ = (
        "_body", "_buffer", "_clogged", "_ended", "_half", "_head", "_lingering", "_own_port", "_prepared",
        "_questioned", "close_after", "exchange", "peer", "plane", "since",
    )  # fmt: skip

    def __init__(self, plane: "Plane", own_port: Key | None) -> None:
        super().__init__()
        self.plane = plane
        self.peer = ""
        self.exchange: Exchange | None = None
        self.close_after = False
        self.since = plane.clock()  # it is idle, or the head incomplete, or lingering
        self._own_port = own_port
        self._buffer = b""
        self._head = b""
        self._prepared: Prepared | None = None
        self._body: Body | None = None  # of the request that is being read
        self._half = False  # a head has begun to arrive
        self._ended = False  # the client sends nothing more, but may wait for its answer
        self._questioned = False  # whether it still reads
        self._clogged = False  # the client does not read what it was sent
        self._lingering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else ""
        self.plane.join(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called for the end of a tunnel, too."""
        self.plane.clients.discard(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.abandon()

    def eof_received(self) -> bool:
        """What is whole is still answered, to a client that has not gone altogether."""
        exchange = self.exchange
        asked = exchange.whole if exchange is not None else bool(self._buffer) and not self._half
        if asked and not self._ended and not self._lingering:
            self._ended = True
        return self._ended

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            self._feed(self._body, data)
            return
        if self._buffer:
            data = self._buffer + data
        if self.exchange is None and not self._clogged and not self._lingering:
            self._next(data)
        elif not self._lingering:
            self._buffer = data
            if len(data) > READ_AHEAD:
                self.pause()

    def _next(self, data: bytes) -> None:
        """Takes the request at the front, if its head is whole."""
        end = data.find(END)
        if end < 0 or end > MAX_HEAD:
            self._await_head(data)
            return
        head = data[:end]
        prepared = self._prepared
        if prepared is None or head != self._head or prepared.landscape is not self.plane.landscape:
            try:
                prepared = prepare(self.plane.landscape, parse_request(head), self.peer, self._own_port)
            except Malformed as error:
                self._reject(Refusal(error.status, str(error)))
                return
            self._head, self._prepared = (head, prepared) if end <= KEPT_HEAD else (b"", None)
        self._half = False
        self._start(prepared, data, end + 4)

    def _await_head(self, data: bytes) -> None:
        self._buffer = data
        if self._ended:
            self.transport.close()  # the rest will not come
        elif len(data) > MAX_HEAD:
            self._reject(TOO_LONG)
        elif data.count(b"\n") != data.count(b"\r\n"):
            self._reject(Refusal(400, "a line of the head does not end with CR LF"))
        elif not self._half:
            self._half, self.since = True, self.plane.clock()

    def _start(self, prepared: Prepared, data: bytes, start: int) -> None:
        plane = self.plane
        exchange = Exchange(self, prepared, prepared.request_id or plane.new_id(), plane.clock())
        self.exchange = exchange
        stop = start + prepared.head.length
        if start <= stop <= len(data):
            exchange.whole = True
            self._buffer = data[stop:]
            if stop > start:
                exchange.more(data[start:stop])
        else:
            self._buffer = b""
            self._body = body_of(prepared.head.length)
            self._feed(self._body, data[start:])
        if self.exchange is exchange:  # it was no request after all otherwise
            self._admit(exchange, prepared)

    def _admit(self, exchange: Exchange, prepared: Prepared) -> None:
        route = prepared.route
        if route is None:
            self._answer_itself(exchange, prepared)
            return
        refusal = self.plane.gate.admit(route.route, prepared.head.headers, self.peer)
        if refusal is not None:
            exchange.refuse(refusal)
        else:
            self.plane.place(exchange, route, prepared.tag)

    def _answer_itself(self, exchange: Exchange, prepared: Prepared) -> None:
        own = self.plane.own.get(prepared.page)
        if own is None:
            exchange.refuse(prepared.refusal or Refusal(404, f"the gateway has no page /{prepared.page}"))
        elif exchange.method not in {"GET", "HEAD"}:
            exchange.refuse(NOT_READ_ONLY)
        else:
            exchange.reply(page(*own(), exchange.closes(), exchange.method == "HEAD"))

    def _feed(self, body: Body, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            return  # it was answered before it was whole; the rest is not read
        try:
            used = body.feed(data)
        except Malformed as error:
            exchange.spoil(Refusal(400, f"the request's body is malformed: {error}"))
            return
        if body.done:
            self._body, exchange.whole = None, True
            self._buffer = data[used:]
            data = data[:used]
        if data:
            exchange.more(data)

    def _reject(self, refusal: Refusal) -> None:
        """Bytes after which nobody can say where the next request begins."""
        self.close_after = True
        self.write(rendered(refusal, self.plane.new_id(), close=True))
        self._linger()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def done(self, now: float) -> None:
        """The request is answered; goes on with what has come meanwhile."""
        if self.exchange is not None:
            self.exchange.drop()
        self.exchange = None
        self.since = now
        if self._body is not None:
            self._linger()
        elif self.close_after or (self._ended and not self._buffer):
            self.transport.close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._paused:
            self.resume()
        if self._buffer and not self._clogged:
            asyncio.get_running_loop().call_soon(self._resume_buffered)

    def _resume_buffered(self) -> None:
        if self.exchange is None and self._body is None and not self.transport.is_closing():
            data, self._buffer = self._buffer, b""
            if data and not self._clogged:
                self._next(data)

    def _linger(self) -> None:
        """Closing now would reset what the client has not read yet: it is told the end, and then waited for."""
        self._lingering, self._body, self._buffer = True, None, b""
        self.since = self.plane.clock()
        self.resume()
        if not self.transport.is_closing():
            self.transport.write_eof()

    def taken(self) -> bytes:
        """What was read beyond the request, for whoever takes the connection over."""
        data, self._buffer = self._buffer, b""
        return data

    def pause_writing(self) -> None:
        self._clogged = True
        if self.exchange is not None and self.exchange.upstream is not None:
            self.exchange.upstream.pause()

    def resume_writing(self) -> None:
        self._clogged = False
        if self.exchange is None:
            self._go_on()
        elif self.exchange.upstream is not None:
            self.exchange.upstream.resume()

    @property
    def busy(self) -> bool:
        """A request is here, or begins to be, or its answer has not left."""
        return self.exchange is not None or bool(self._buffer) or self.transport.get_write_buffer_size() > 0

    def close(self) -> None:
        """At the end of the process: what is not answered by then will not be."""
        if self.exchange is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def end_if_overdue(self, now: float) -> None:
        """Ends a connection that is idle too long, or a request that does not come or is not answered in time."""
        if self._ended and self._has_left():
            self.transport.abort()
            return
        if self.exchange is not None:
            self.exchange.expire(now)
            return
        waited = now - self.since
        if self._lingering or self._clogged:
            if waited > (LINGER_S if self._lingering else HEAD_S):
                self.transport.abort()
        elif self._half and waited > HEAD_S:
            self._reject(TOO_SLOW)
        elif waited > self.plane.idle_s:
            self.transport.close()

    def _has_left(self) -> bool:
        """Of a client that sends nothing more. It is asked when its answer takes longer than a moment."""
        exchange = self.exchange
        if not self._questioned and exchange is not None and exchange.minor and not exchange.began:
            self._questioned = True
            self.write(QUESTION)
        return has_gone(self.transport)
