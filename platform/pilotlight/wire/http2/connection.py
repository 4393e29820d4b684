"""A connection of HTTP/2 from the server's side: bytes in, streams and frames out. No socket, no loop.

`receive` takes bytes as they come. A request's head goes to the `Guest`, which makes a stream of it; its data goes to
the stream; everything else is answered here. What is to be written gathers in `out`. A peer that breaks the protocol,
or costs more than it brings, gets a ConnectionFault. flow.py has the part that knows data and windows.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from pilotlight.wire.http2 import frames as f
from pilotlight.wire.http2.blocks import MAX_BLOCK, MAX_FIELDS, Blocks
from pilotlight.wire.http2.flow import MAX_FRAME, STREAM_WINDOW, WINDOW, Flow
from pilotlight.wire.http2.frames import ConnectionFault
from pilotlight.wire.http2.hpack import Field

MAX_STREAMS: Final = 1024
OURS: Final = {
    f.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    f.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    f.MAX_FRAME_SIZE: MAX_FRAME,
    f.MAX_HEADER_LIST_SIZE: MAX_FIELDS,
}
LONG_BLOCK: Final = 1 << 12  # bytes of a header block that are paid for
_KNOWS: Final = b"leaving."  # a ping whose answer says that the peer has read what came before it
_MAX_CONTROL: Final = 1 << 14  # bytes of a frame that has no block and no data


class Guest(Protocol):
    def read(self, fields: list[Field], whole: bool) -> Any:
        """What the head of a request means; remembered. `whole` is False where fields were too large to be kept."""

    def open(self, number: int, head: Any, ended: bool) -> None:
        """A request has begun. Whoever wants its data puts a stream into `Connection.streams`."""

    def heard(self) -> None:
        """The peer knows that it was asked to leave."""

    def table_size(self, size: int) -> None:
        """The peer remembers so many bytes of what our blocks let it keep."""


class Connection(Flow):
    def __init__(self, guest: Guest, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.leaving = False  # no further streams are opened
        self.begun = False  # the peer has shown that it speaks HTTP/2
        self._guest = guest
        self._blocks = Blocks(guest.read)
        self._buffer = b""
        self.out.frames += (f.settings(OURS), f.window_update(0, WINDOW - f.DEFAULT_WINDOW))

    def receive(self, data: bytes) -> None:
        """Raises ConnectionFault; what was asked before it stays asked."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        at, end = 0, len(data)
        if not self.begun:
            if not self._begins(data):
                self._buffer = data
                return
            at = len(f.PREFACE)
        elif self._rest:
            at = self.take_rest(data)
        while end - at >= f.HEAD_LENGTH:
            word, flags, number = f.HEAD.unpack_from(data, at)
            kind, length, start, number = word & 0xFF, word >> 8, at + f.HEAD_LENGTH, number & f.WIDEST
            if kind == f.DATA and not self._blocks.unfinished and not flags & f.PADDED:
                at = self.data(data, start, length, flags, number)
                continue
            self._check(kind, length)
            if start + length > end:
                break
            at = start + length
            self._frame(kind, flags, number, data[start:at])
        self._buffer = data[at:]

    def _begins(self, data: bytes) -> bool:
        """Whether the preface is there in full; until it is, nothing else is."""
        self.begun = data.startswith(f.PREFACE)
        if not self.begun and not f.PREFACE.startswith(data):
            raise ConnectionFault(f.PROTOCOL_ERROR, "the connection does not begin as HTTP/2")
        return self.begun

    def _check(self, kind: int, length: int) -> None:
        """Before a frame is waited for: what is held of it must be little."""
        blocks = kind in (f.HEADERS, f.CONTINUATION)
        most = MAX_FRAME if kind == f.DATA or kind > f.CONTINUATION else MAX_BLOCK if blocks else _MAX_CONTROL
        if length > most:
            raise ConnectionFault(
                f.FRAME_SIZE_ERROR, f"a frame of kind {kind} has {length} bytes, at most {most} are read"
            )
        if self._blocks.unfinished and kind != f.CONTINUATION:
            raise ConnectionFault(f.PROTOCOL_ERROR, "a header block is interrupted")

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._settled and kind != f.SETTINGS:
            raise ConnectionFault(f.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        f.check(kind, flags, number, len(payload))
        if kind == f.DATA:
            self.padded_data(flags, number, payload)
        elif (tell := _TELL.get(kind)) is not None:
            tell(self, flags, number, payload)
        else:
            self.spend()

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        block = payload if not flags & (f.PADDED | f.WITH_PRIORITY) else f.block_within(flags, payload)
        if flags & f.END_HEADERS:
            self._request(number, flags, block)
        else:
            self._blocks.begin(number, flags, block)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        self._blocks.go_on(number, payload)
        if flags & f.END_HEADERS:
            self._request(number, self._blocks.flags, self._blocks.end())
        elif not payload:
            self.spend()

    def _request(self, number: int, flags: int, block: bytes) -> None:
        """A whole header block: of a new stream, or at the end of one. Reading a long one costs milliseconds."""
        if len(block) >= LONG_BLOCK:
            self.spend(len(block) // LONG_BLOCK)
        head, ended = self._blocks.meaning(block), bool(flags & f.END_STREAM)
        if number > self.last and number & 1:
            self.last = number
            if self.leaving or len(self.streams) >= MAX_STREAMS:
                self.spend()
                self.out.frames.append(f.rst_stream(number, f.REFUSED_STREAM))
            else:
                self._guest.open(number, head, ended)
        else:
            self._trailers(number, ended)

    def _trailers(self, number: int, ended: bool) -> None:
        """What stands in them is nobody's business; that they end the request is."""
        stream = self.streams.get(number)
        if stream is None:
            self.stray(number, "HEADERS")
        elif stream.ended or not ended:
            raise ConnectionFault(f.PROTOCOL_ERROR, "HEADERS within a request do not end it")
        else:
            stream.ended = True
            stream.take(b"", 0, 0)

    def _priority(self, _: int, __: int, ___: bytes) -> None:
        self.spend()

    def _reset(self, _: int, number: int, __: bytes) -> None:
        stream = self.streams.pop(number, None)
        if stream is None:
            self.stray(number, "RST_STREAM")
            return
        self.out.forget(stream)
        stream.gone()
        if self._ages.is_young(number, self.last, self._now()):
            self.spend()

    def _settings(self, flags: int, _: int, payload: bytes) -> None:
        self.spend()
        if flags & f.ACK:
            return
        self._settled = True
        for name, value in dict(f.read_settings(payload)).items():  # the last of a name counts
            if name == f.INITIAL_WINDOW_SIZE:
                self.out.widen_all(value, list(self.streams.values()))
            elif name == f.MAX_FRAME_SIZE:
                self.out.largest = min(value, MAX_FRAME)
            elif name == f.HEADER_TABLE_SIZE:
                self._guest.table_size(value)
        self.out.frames.append(f.frame(f.SETTINGS, f.ACK, 0))

    def _ping(self, flags: int, _: int, payload: bytes) -> None:
        self.spend()
        if not flags & f.ACK:
            self.out.frames.append(f.frame(f.PING, f.ACK, 0, payload))
        elif payload == _KNOWS:
            self._guest.heard()

    def _goaway(self, _: int, __: int, ___: bytes) -> None:
        """The peer opens no further streams, and ends the connection when it has its answers."""
        self.spend()

    def leave(self) -> None:
        """Asks the peer to open no further streams; those that it opens before it knows are served (RFC 9113, 6.8)."""
        if not self.leaving:
            self.out.frames += (f.goaway(f.WIDEST, f.NO_ERROR), f.frame(f.PING, 0, 0, _KNOWS))

    def depart(self) -> None:
        """Opens no further streams; those under way are finished."""
        if not self.leaving:
            self.leaving = True
            self.out.frames.append(f.goaway(self.last, f.NO_ERROR))

    def fail(self, fault: ConnectionFault) -> None:
        """The last thing that the peer is told."""
        self.leaving = True
        self.out.frames.append(f.goaway(self.last, fault.code, str(fault)))

    def lose(self) -> None:
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            self.out.forget(stream)
            stream.gone()


_TELL: Final[dict[int, Callable[[Connection, int, int, bytes], None]]] = {
    f.HEADERS: Connection._headers,
    f.PRIORITY: Connection._priority,
    f.RST_STREAM: Connection._reset,
    f.SETTINGS: Connection._settings,
    f.PING: Connection._ping,
    f.GOAWAY: Connection._goaway,
    f.WINDOW_UPDATE: Connection.window_update,
    f.CONTINUATION: Connection._continuation,
}
