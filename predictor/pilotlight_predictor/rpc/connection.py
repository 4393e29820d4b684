"""A client's connection to the gRPC port: the socket's end of HTTP/2, and where heads become calls.

Bytes go to `http`, which opens streams here (`open`), and what gathers there is written at the end of each turn. A call
that is answered at once leaves as one piece of memory: head, message and trailers.
"""

import asyncio
import struct
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from pilotlight.wire.http2 import frames as f
from pilotlight.wire.http2.connection import Connection
from pilotlight.wire.http2.frames import ConnectionFault
from pilotlight.wire.http2.hpack import Field
from pilotlight_predictor.lane_patience import LEAST_RATE, SLOW_S
from pilotlight_predictor.rpc.call_head import ACCEPTED, CallHead, read_head
from pilotlight_predictor.rpc.exchange import Exchange
from pilotlight_predictor.rpc.gathering import PREFIX
from pilotlight_predictor.rpc.reply_blocks import KNOWN_DONE, KNOWN_HEAD, ReplyBlocks

if TYPE_CHECKING:
    from pilotlight_predictor.rpc.desk import Desk

PREFACE_S: Final = 20.0  # in which a client shows that it speaks HTTP/2
LINGER_S: Final = 0.1  # in which a client hears that it shall go, and from its last answer to its connection's end
SMALL: Final = 1 << 14  # bytes of an answer that is copied to where its head and trailers are
_ENDS: Final = f.END_HEADERS | f.END_STREAM
_BEFORE: Final = struct.Struct(f">IBI{len(KNOWN_HEAD)}sIBIBI")  # HEADERS, the head of DATA, and of the message
_BEHIND: Final = struct.Struct(f">IBI{len(KNOWN_DONE)}s")
_HEADERS_WORD: Final = len(KNOWN_HEAD) << 8 | f.HEADERS
_TRAILERS_WORD: Final = len(KNOWN_DONE) << 8 | f.HEADERS
_NOT_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 43\r\nconnection: close\r\n\r\n"
    b"this port speaks gRPC: HTTP/2 without TLS.\n"
)


class RpcConnection(asyncio.Protocol):
    def __init__(self, desk: "Desk", max_message: int) -> None:
        self.desk, self.admission, self.codecs, self.max_message = desk, desk.admission, desk.codecs, max_message
        self.http = Connection(self, monotonic)
        self.blocks = ReplyBlocks()
        self.peer = ""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._receiving = self._scheduled = self._lingers = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if address else ""
        self._timer = asyncio.get_running_loop().call_later(PREFACE_S, self._silent)
        self.desk.connections.add(self)
        if self.desk.closing:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self.desk.connections.discard(self)
        self._transport = None
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        self.http.lose()

    def _silent(self) -> None:
        if not self.http.begun:
            self.close()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._receiving = True
        try:
            self.http.receive(data)
        except ConnectionFault as fault:
            self._fail(fault)
        finally:
            self._receiving = False
        self._flush()

    def _fail(self, fault: ConnectionFault) -> None:
        self.http.fail(fault)
        if not self.http.begun and self._transport is not None:
            self._transport.write(_NOT_HTTP2)
        self._flush()
        self.close()

    def close(self) -> None:
        """What was written is still sent, to a client that reads it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._abort_in(SLOW_S)

    def _abort_in(self, seconds: float) -> None:
        assert self._transport is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def flush_soon(self) -> None:
        """Answers that are ready within one turn of the loop leave together."""
        if not self._receiving and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        out, transport = self.http.out, self._transport
        while self.http.begun and out.frames and transport is not None and not transport.is_closing():
            large = out.bursting
            frames = out.taken()
            if large:
                transport.writelines(frames)
                out.pump()
            else:
                transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if (out.ready or out.shut) and self._look is None:
            self._look_later()
        if self.http.leaving and not self.http.streams:
            self._linger()

    def _look_later(self) -> None:
        before = self.http.out.backlog()
        self._look = asyncio.get_running_loop().call_later(SLOW_S, self._look_for_unread, before)

    def _look_for_unread(self, before: dict[int, tuple[int, int]]) -> None:
        """Answers of which a client has taken nothing since are held no longer."""
        self._look = None
        for number, left in self.http.out.backlog().items():
            if before.get(number) == left:
                stream = self.http.streams[number]
                stream.gone()
                self.http.reset(stream, f.CANCEL)
        self._flush()

    def _linger(self) -> None:
        """A client that is told to go mostly does; what it sent before it knew is refused meanwhile, and not lost."""
        if not self._lingers:
            self._lingers = True
            asyncio.get_running_loop().call_later(LINGER_S, self.close)

    def pause_writing(self) -> None:
        """The client does not read what we write: nothing more is made for it until it does, or for ever."""
        self.http.out.held = True
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.pause_reading()
        self._abort_in(SLOW_S + self._transport.get_write_buffer_size() / LEAST_RATE)

    def resume_writing(self) -> None:
        self.http.out.held = False
        if self._transport is not None and not self._transport.is_closing():
            if self._timer is not None:
                self._timer.cancel()
            self._transport.resume_reading()
            self.http.out.pump()
            self._flush()

    def leave(self) -> None:
        """Asks for no further calls. Those that come before the client knows are served: it could not tell whether it
        may send them again."""
        self.http.leave()
        self._hurry()
        asyncio.get_running_loop().call_later(LINGER_S, self.heard)

    def heard(self) -> None:
        """Takes no further calls; streams end between two messages, and the connection with the last answer."""
        if self._transport is not None:
            self.http.depart()
            self._hurry()

    def _hurry(self) -> None:
        for stream in list(self.http.streams.values()):
            cast(Exchange, stream).hurry()
        self.flush_soon()

    def read(self, fields: list[Field], whole: bool) -> CallHead:
        head = read_head(fields, whole)
        head.post = self.desk.post(head.path)
        if head.post is None and not head.code:
            head.code, head.problem = "UNIMPLEMENTED", "Method not found!"
        return head

    def table_size(self, size: int) -> None:
        self.blocks.table_size(size)

    def open(self, number: int, head: CallHead, ended: bool) -> None:
        exchange = Exchange(self, number, head, ended=ended)
        self.http.streams[number] = exchange
        if head.malformed or head.http_status != 200 or head.code:
            self._turn_away(exchange, head)
            return
        exchange.begin()
        if ended:
            exchange.take(b"", 0, 0)

    def _turn_away(self, exchange: Exchange, head: CallHead) -> None:
        if head.malformed:
            exchange.settle()
            self.http.reset(exchange, f.PROTOCOL_ERROR)
        elif head.http_status != 200:
            self.http.out.end(exchange, self.blocks.no_call(head.http_status))
            exchange.settle()
        else:
            exchange.fail(head.code, head.problem, (("grpc-accept-encoding", ACCEPTED),))

    def answer(self, exchange: Exchange, message: bytes) -> None:
        """The one answer of a call."""
        http, length, number = self.http, len(message) + PREFIX.size, exchange.number
        out = http.out
        if not self.blocks.settled or not out.fits(exchange, length):
            self.send(exchange, message)
            out.end(exchange, self.blocks.done(waits=bool(exchange.waiting)))
        else:
            word = length << 8 | f.DATA
            before = _BEFORE.pack(
                _HEADERS_WORD, f.END_HEADERS, number, KNOWN_HEAD, word, 0, number, 0, len(message)
            )  # fmt: skip
            behind = _BEHIND.pack(_TRAILERS_WORD, _ENDS, number, KNOWN_DONE)
            out.frames += (before, message, behind)
            out.window -= length
            http.answered(exchange)
        exchange.settle()

    def send(self, exchange: Exchange, message: bytes) -> None:
        """One message, behind the head that stands before the first."""
        out, prefix = self.http.out, PREFIX.pack(0, len(message))
        if not exchange.headed:
            exchange.headed = True
            out.head(exchange, self.blocks.head())
        if len(message) <= SMALL:
            out.data(exchange, prefix + message)
        else:
            out.data(exchange, prefix)
            out.data(exchange, message)
