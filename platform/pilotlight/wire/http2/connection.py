"""HTTP/2 connection, server side: bytes in, requests and frames out. No socket, no event loop.

`receive` takes bytes as they arrive. A request head goes to the `RequestHandler`, which creates a stream for it, and
DATA goes to the stream; all other frames are handled here. Frames to be written collect in `out`. A peer that violates
the protocol, or floods it with control frames, causes a ConnectionFault. FlowControl has DATA and the windows.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.frames import MAX_BLOCK, MAX_FIELDS, ConnectionFault, HeaderBlocks
from pilotlight.wire.http2.hpack import HeaderField
from pilotlight.wire.http2.streams import CONNECTION_WINDOW, MAX_FRAME, STREAM_WINDOW, FlowControl

MAX_STREAMS: Final = 1024
LOCAL_SETTINGS: Final = {
    frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    frames.MAX_FRAME_SIZE: MAX_FRAME,
    frames.MAX_HEADER_LIST_SIZE: MAX_FIELDS,
}
_DRAIN_PING: Final = b"leaving."  # its ACK proves that the peer has read the GOAWAY before it
_MAX_CONTROL: Final = 1 << 14  # bytes of a frame without header block and data


class RequestHandler(Protocol):
    """Receiver of the requests of a connection."""

    def parse_head(self, fields: list[HeaderField], whole: bool) -> Any:
        """Return the request head of decoded fields; cached per block. `whole` is False where fields were dropped."""

    def on_request(self, number: int, head: Any, ended: bool) -> None:
        """Handle a new request. To receive its data, put a stream into `Http2Connection.streams`."""

    def stop_accepting(self) -> None:
        """Handle the acknowledged GOAWAY of `announce_shutdown`: the peer opens no further streams."""

    def on_ping(self) -> None:
        """Handle a PING, which is then acknowledged. Raise ConnectionFault if the peer pings too often."""

    def on_table_size(self, size: int) -> None:
        """Handle the size in bytes of the peer's HPACK table, for the blocks of responses."""


class Http2Connection(FlowControl):
    def __init__(self, handler: RequestHandler, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.shutting_down = False  # new streams are refused
        self.preface_received = False  # the client preface has arrived
        self._handler = handler
        self._blocks = HeaderBlocks(handler.parse_head, self.spend)
        self._buffer = b""
        self.out.frames += (
            frames.settings(LOCAL_SETTINGS),
            frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW),
        )

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket. Raise ConnectionFault; requests before the fault have been opened."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        at, end = 0, len(data)
        if not self.preface_received:
            if not data.startswith(frames.PREFACE):
                if not frames.PREFACE.startswith(data):
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "the connection does not begin as HTTP/2")
                self._buffer = data
                return
            self.preface_received, at = True, len(frames.PREFACE)
        elif self._missing:
            at = self.continue_data(data)
        while end - at >= frames.HEAD_LENGTH:
            word, flags, number = frames.HEAD.unpack_from(data, at)
            kind, length, start, number = word & 0xFF, word >> 8, at + frames.HEAD_LENGTH, number & frames.UINT31_MAX
            # Hot path: plain DATA is handed on before the frame is complete, so that large bodies are not copied.
            if kind == frames.DATA and not self._blocks.unfinished and not flags & frames.PADDED:
                at = self.data(data, start, length, flags, number)
                continue
            self._check(kind, length)
            if start + length > end:
                break
            at = start + length
            self._frame(kind, flags, number, data[start:at])
        self._buffer = data[at:]

    def _check(self, kind: int, length: int) -> None:
        """Check type and length before the frame is buffered, so that little of it is held in memory."""
        has_block = kind in (frames.HEADERS, frames.CONTINUATION)
        most = MAX_BLOCK if has_block else _MAX_CONTROL
        if kind == frames.DATA or kind > frames.CONTINUATION:
            most = MAX_FRAME
        if length > most:
            problem = f"a frame of kind {kind} has {length} bytes, at most {most} are read"
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, problem)
        if self._blocks.unfinished and kind != frames.CONTINUATION:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block is interrupted")

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._settled and kind != frames.SETTINGS:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        frames.check(kind, flags, number, len(payload))
        if kind == frames.DATA:
            self.padded_data(flags, number, payload)
        elif (handle := _HANDLERS.get(kind)) is not None:
            handle(self, flags, number, payload)
        else:
            self.spend()  # unknown types must be ignored (RFC 9113, 4.1)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        block = payload if not flags & (frames.PADDED | frames.WITH_PRIORITY) else frames.header_block(flags, payload)
        if flags & frames.END_HEADERS:
            self._request(number, flags, block)
        else:
            self._blocks.begin(number, flags, block)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        self._blocks.append(number, payload)
        if flags & frames.END_HEADERS:
            self._request(number, self._blocks.flags, self._blocks.end())
        elif not payload:
            self.spend()

    def _request(self, number: int, flags: int, block: bytes) -> None:
        """Handle a complete header block: the head of a new stream, or the trailers of an open one."""
        # Decoded even if the stream is refused: the HPACK table of both sides must stay in step.
        ended = bool(flags & frames.END_STREAM)
        if number > self.last and number & 1:
            head, self.last = self._blocks.head(block), number
            if self.shutting_down or len(self.streams) >= MAX_STREAMS:
                self.spend()
                self.cut_off(number, frames.REFUSED_STREAM)
            else:
                self._handler.on_request(number, head, ended)
        else:
            self._trailers(number, ended, self._blocks.fields(block)[0])

    def _trailers(self, number: int, ended: bool, fields: list[HeaderField]) -> None:
        """End the request; its trailing fields are ignored."""
        stream = self.streams.get(number)
        if stream is None:
            self.check_not_idle(number, "HEADERS")
            if not self.was_cut_off(number):
                raise ConnectionFault(frames.STREAM_CLOSED, f"HEADERS for stream {number}, which has ended")
        elif stream.ended or not ended:
            code = frames.STREAM_CLOSED if stream.ended else frames.PROTOCOL_ERROR
            raise ConnectionFault(code, "HEADERS within a request do not end it")
        elif any(name.startswith(":") for name, _ in fields):  # RFC 9113, 8.1
            stream.on_reset()
            self.reset(stream, frames.PROTOCOL_ERROR)
        else:
            stream.ended = True
            stream.on_data(b"", 0, 0)

    def _ignore(self, _: int, __: int, ___: bytes) -> None:
        """Charge PRIORITY, and GOAWAY: the peer opens no further streams and closes after its last response."""
        self.spend()

    def _reset(self, _: int, number: int, __: bytes) -> None:
        stream = self.streams.pop(number, None)
        if stream is None:
            self.check_not_idle(number, "RST_STREAM")
            return
        self.out.discard(stream)
        stream.on_reset()
        # Rapid reset: opening and resetting a stream costs the client almost nothing (CVE-2023-44487).
        if self._ages.is_young(number, self.last, self._now()):
            self.spend()

    def _settings(self, flags: int, _: int, payload: bytes) -> None:
        self.spend()
        if flags & frames.ACK:
            return
        self._settled = True
        for name, value in dict(frames.read_settings(payload)).items():  # the last value of an identifier counts
            if name == frames.INITIAL_WINDOW_SIZE:
                self.out.set_initial_window(value, list(self.streams.values()))
            elif name == frames.MAX_FRAME_SIZE:
                self.out.max_frame_size = min(value, MAX_FRAME)
            elif name == frames.HEADER_TABLE_SIZE:
                self._handler.on_table_size(value)
        self.out.frames.append(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _ping(self, flags: int, _: int, payload: bytes) -> None:
        self.spend()
        if not flags & frames.ACK:
            self._handler.on_ping()
            self.out.frames.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN_PING:
            self._handler.stop_accepting()

    def ping(self) -> None:
        """Send a PING to a silent peer; any bytes that it sends show that it lives."""
        self.out.frames.append(frames.frame(frames.PING, 0, 0, bytes(8)))

    def announce_shutdown(self) -> None:
        """Ask the peer to open no further streams; those that cross this GOAWAY are served (RFC 9113, 6.8)."""
        if not self.shutting_down:
            # The highest possible id refuses nothing yet; the ACK of the PING ends the race.
            self.out.frames += (
                frames.goaway(frames.UINT31_MAX, frames.NO_ERROR),
                frames.frame(frames.PING, 0, 0, _DRAIN_PING),
            )

    def shutdown(self) -> None:
        """Refuse further streams; open ones are finished."""
        if not self.shutting_down:
            self.shutting_down = True
            self.out.frames.append(frames.goaway(self.last, frames.NO_ERROR))

    def fail(self, fault: ConnectionFault) -> None:
        """Send GOAWAY with the error as the last frame."""
        self.shutting_down = True
        self.out.frames.append(frames.goaway(self.last, fault.code, str(fault)))

    def drop_streams(self) -> None:
        """Drop all streams after the connection was lost."""
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            self.out.discard(stream)
            stream.on_reset()


_HANDLERS: Final[dict[int, Callable[[Http2Connection, int, int, bytes], None]]] = {
    frames.HEADERS: Http2Connection._headers,
    frames.PRIORITY: Http2Connection._ignore,
    frames.RST_STREAM: Http2Connection._reset,
    frames.SETTINGS: Http2Connection._settings,
    frames.PING: Http2Connection._ping,
    frames.GOAWAY: Http2Connection._ignore,
    frames.WINDOW_UPDATE: Http2Connection.window_update,
    frames.CONTINUATION: Http2Connection._continuation,
}
