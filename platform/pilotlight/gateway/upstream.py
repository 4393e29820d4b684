"""A connection to a replica: sends a request, passes its answer to the client as it comes, and is kept for the next.

An answer whose head and counted body are here at once goes out as the very bytes that came in. Anything longer passes
piece by piece; who reads slowly stops who writes.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Final, cast

from pilotlight.gateway.delivery import never_delivered
from pilotlight.gateway.pacing import Paced
from pilotlight.gateway.replica import LiveReplica
from pilotlight.wire.bodies import Body, Chunked, UntilClose, body_of
from pilotlight.wire.heads import CHUNKED, MAX_HEAD, UNTIL_CLOSE, Malformed, ResponseHead, parse_response
from pilotlight.wire.http1 import END

if TYPE_CHECKING:
    from pilotlight.gateway.exchange import Exchange

BODILESS: Final = frozenset({204, 304})
JOIN_BELOW: Final = 1 << 14  # bytes that are cheaper to copy than to write apart


class Upstream(Paced):
    __slots__ = (
        "_body", "_buffer", "_ended", "_probe", "_reusable", "_sent", "_sent_before", "_status", "closing", "exchange",
        "idle_since", "replica",
    )  # fmt: skip

    def __init__(self, replica: LiveReplica) -> None:
        super().__init__()
        self.replica = replica
        self.exchange: Exchange | None = None
        self.closing = False
        self.idle_since = 0.0
        self._probe: socket.socket | None = None
        self._sent = self._sent_before = 0
        self._ended = False  # by the replica, and not by a reset
        self._buffer = b""
        self._body: Body | None = None
        self._status = 0
        self._reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        opened = transport.get_extra_info("socket")
        # The loop has closed its descriptor by the time it tells of a lost connection; this one can still be asked.
        self._probe = socket.socket(fileno=socket.dup(opened.fileno())) if opened is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self.replica.forget(self)
        exchange, self.exchange = self.exchange, None
        # A broken pipe is what a writer gets for a reset that came after the end; without the end it is told "reset".
        ended = self._ended or isinstance(exc, BrokenPipeError)
        unread = exchange is not None and self._never_delivered(ended)
        self._drop_probe()
        if exchange is None:
            return
        if exc is None and isinstance(self._body, UntilClose):
            exchange.finish(self._status, exchange.now())
        else:
            exchange.lost(unread)

    def hand_over(self) -> asyncio.Transport:
        """For whatever its two ends have agreed to speak; another protocol hears of its end."""
        self.exchange = None
        self.closing = True
        self._drop_probe()
        return self.transport

    def _drop_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def eof_received(self) -> bool:
        self.closing = self._ended = True
        return False

    def _never_delivered(self, ended: bool) -> bool:
        nothing_came = self._body is None and not self._buffer
        return nothing_came and self._probe is not None and never_delivered(self._probe, self._sent_before, ended)

    def send(self, exchange: "Exchange", parts: list[bytes]) -> None:
        """A request's head with what there is of its body."""
        self.exchange = exchange
        self._sent_before = self._sent
        self._status, self._reusable = 0, True
        length = sum(map(len, parts))
        self._sent += length
        if length <= JOIN_BELOW:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def send_more(self, piece: bytes) -> None:
        self._sent += len(piece)
        self.transport.write(piece)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.close()  # nobody has asked
        elif self._body is not None:
            self._pass(exchange, self._body, data)
        else:
            self._read_head(exchange, self._buffer + data if self._buffer else data)

    def _read_head(self, exchange: "Exchange", data: bytes) -> None:
        end = data.find(END)
        if end < 0 and len(data) <= MAX_HEAD:
            self._buffer = data
            return
        self._buffer = b""
        try:
            head = parse_response(data[: max(end, 0)])
        except Malformed:
            self._spoiled(exchange)
            return
        status = head.status
        if status < 200:
            self._on_interim(exchange, head, data, end)
            return
        self._status, self._reusable = status, head.keep_alive
        length = 0 if status in BODILESS or exchange.method == "HEAD" else head.length
        if head.plain and len(data) == end + 4 + length:
            exchange.pass_plain(head, data, end)
            self._complete(exchange)
        else:
            self._begin(exchange, head, data, end, length)

    def _on_interim(self, exchange: "Exchange", head: ResponseHead, data: bytes, end: int) -> None:
        """100 Continue and the like pass; 101 hands the connection over to whatever was agreed on."""
        rest = data[end + 4 :]
        if head.status == 101:
            exchange.tunnel(self, data[: end + 4], rest)
            return
        exchange.pass_interim(data[: end + 4])
        if rest:
            self._read_head(exchange, rest)

    def _begin(self, exchange: "Exchange", head: ResponseHead, data: bytes, end: int, length: int) -> None:
        """A streamed answer: its head, then the body as it comes."""
        exchange.pass_head(head, data[:end], length)
        opened = length == CHUNKED and exchange.minor == 0
        self._body = body = Chunked(collect=True) if opened else body_of(length)
        if length == UNTIL_CLOSE:
            self._reusable = False
        self._pass(exchange, body, data[end + 4 :])

    def _pass(self, exchange: "Exchange", body: Body, data: bytes) -> None:
        try:
            used = body.feed(data)
        except Malformed:
            self._spoiled(exchange)
            return
        if used < len(data):
            self._reusable = False  # bytes that nobody asked for
            data = data[:used]
        if isinstance(body, Chunked) and body.collecting:
            data = body.taken()
        if data:
            exchange.write(data)
        if body.done:
            self._complete(exchange)

    def _complete(self, exchange: "Exchange") -> None:
        """Kept before the exchange ends: whoever waits for the place finds the connection with it."""
        self.exchange = self._body = None
        now = exchange.now()
        if self._paused:
            self.resume()
        if self._reusable and exchange.whole:
            self.replica.keep(self, now)
        else:
            self.close()
        exchange.finish(self._status, now)

    def _spoiled(self, exchange: "Exchange") -> None:
        self.exchange = None
        self.abort()
        exchange.lost(False)

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.client.pause()

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.client.resume()

    def close(self) -> None:
        self.closing = True
        self.transport.close()

    def abort(self) -> None:
        """The replica learns that nobody waits any more."""
        self.closing = True
        self.transport.abort()
