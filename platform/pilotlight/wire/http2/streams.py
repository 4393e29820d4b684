"""Streams of an HTTP/2 connection with flow control: data to be sent waits for windows, received DATA is charged.

Http2Connection derives from FlowControl and handles all other frames. DATA is handed on in place, before its frame is
complete: large bodies are not assembled here.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.frames import (
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEAD,
    HEADERS,
    UINT31_MAX,
    ConnectionFault,
    FloodLimiter,
    StreamAges,
    frame,
)

OUTGOING_SMALL: Final = 1 << 16
BURST: Final = 1 << 20  # bytes of DATA between two checks of the socket
MAX_FRAME: Final = 1 << 18  # bytes of DATA: one frame header for as much as a socket read returns
STREAM_WINDOW: Final = 1 << 20
CONNECTION_WINDOW: Final = 1 << 24
MAX_CUT_OFF: Final = 1 << 12  # streams: more than can be open at once
SMALL: Final = 1 << 10  # bytes of DATA or of a WINDOW_UPDATE below which the frame costs more than it carries


class Http2Stream:
    """One request and its response. The server derives its calls from it."""

    __slots__ = ("credit", "ended", "number", "pending", "trailers", "window")

    def __init__(self, number: int, window: int, credit: int, *, ended: bool) -> None:
        self.number = number
        self.window = window  # send window
        self.credit = credit  # receive window
        self.ended = ended  # END_STREAM was received
        self.pending: deque[memoryview] | None = None
        self.trailers: bytes | None = None  # sent after the pending data

    def on_data(self, data: Buffer, start: int, end: int) -> None:
        """Receive bytes of the request, or its end if `ended`."""

    def on_reset(self) -> None:
        """Handle RST_STREAM or the loss of the connection."""

    def on_drained(self) -> None:
        """Handle that all pending data has been written."""


class SendBuffer:
    """Frames to be written, with the send windows.

    Data that the windows do not allow waits, one frame per stream in turn. `paused` is set while the socket's buffer is
    full: data waits then whatever the windows are.
    """

    def __init__(self, on_complete: Callable[[Http2Stream], None]) -> None:
        self.frames: list[Buffer] = []
        self.window, self.initial_window, self.max_frame_size = DEFAULT_WINDOW, DEFAULT_WINDOW, DEFAULT_FRAME
        self.paused = False
        self._on_complete = on_complete  # called when the response of a stream is complete
        self.progress = 0  # grows with HEADERS, DATA and WINDOW_UPDATE frames, at least once per response
        self.full_frames = 0  # DATA frames that no window has cut
        self.ready: dict[int, Http2Stream] = {}  # with data and a positive window, in the order of their turns
        # With data and an exhausted window: a WINDOW_UPDATE of the connection does not iterate over them.
        self.blocked: dict[int, Http2Stream] = {}
        self.burst = 0  # bytes of DATA to be written

    def head(self, stream: Http2Stream, block: bytes) -> None:
        self.frames.append(frame(HEADERS, END_HEADERS, stream.number, block))
        self.progress += 1

    def data(self, stream: Http2Stream, data: Buffer) -> None:
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.append(memoryview(data))
        self._enqueue(stream)
        self.pump()

    def _enqueue(self, stream: Http2Stream) -> None:
        if stream.window > 0:
            self.ready[stream.number] = stream
        else:
            self.blocked[stream.number] = stream

    def end(self, stream: Http2Stream, block: bytes) -> None:
        """End the response with trailers, after all data."""
        if stream.pending:
            stream.trailers = block
            return
        self.frames.append(frame(HEADERS, END_HEADERS | END_STREAM, stream.number, block))
        self._on_complete(stream)

    def fits(self, stream: Http2Stream, length: int) -> bool:
        """Whether this much data fits the windows and one frame now.

        Streams with queued data are not considered: a unary response may overtake them.
        """
        if length > self.max_frame_size or length > self.window or length > stream.window:
            return False
        return not self.paused and self.burst < BURST

    def pump(self) -> None:
        """Send as much as windows and socket allow, one frame per waiting stream in turn."""
        while self.ready and self.window > 0 and not self.paused and self.burst < BURST:
            self._send_frame(self.ready.pop(next(iter(self.ready))))

    def backlog(self) -> dict[int, tuple[int, int]]:
        """Return pieces and length of the first piece by id of each pending stream; both change with every progress."""
        waiting = (*self.ready.values(), *self.blocked.values())
        return {each.number: (len(each.pending), len(each.pending[0])) for each in waiting if each.pending}

    @property
    def bursting(self) -> bool:
        """Whether so much is waiting to be written that joining it would be a costly copy."""
        return self.burst > OUTGOING_SMALL

    def take_frames(self) -> list[Buffer]:
        """Return and clear the frames to be written."""
        taken, self.frames, self.burst = self.frames, [], 0
        return taken

    def discard(self, stream: Http2Stream) -> None:
        self.ready.pop(stream.number, None)
        self.blocked.pop(stream.number, None)
        stream.pending = None

    def _send_frame(self, stream: Http2Stream) -> None:
        """Send one frame of a stream; with data left, the stream goes to the end of the queue."""
        assert stream.pending
        piece = stream.pending[0]
        size = min(len(piece), self.max_frame_size, self.window, stream.window)
        self.frames += (HEAD.pack(size << 8 | DATA, 0, stream.number), piece[:size])
        self.window -= size
        stream.window -= size
        self.burst += size
        self.progress += 1
        self.full_frames += size in (len(piece), self.max_frame_size)
        if size < len(piece):
            stream.pending[0] = piece[size:]
        else:
            stream.pending.popleft()
        if stream.pending:
            self._enqueue(stream)
        else:
            stream.on_drained()
            if stream.trailers is not None:
                self.end(stream, stream.trailers)

    def increase_window(self, more: int) -> None:
        if self.window + more > UINT31_MAX:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "the connection's window is too wide")
        self.window += more
        self.pump()

    def increase_stream_window(self, stream: Http2Stream, more: int) -> None:
        stream.window += more
        if stream.window > 0 and self.blocked.pop(stream.number, None) is not None:
            self.ready[stream.number] = stream
            self.pump()

    def set_initial_window(self, initial: int, streams: "list[Http2Stream]") -> None:
        """Apply a new SETTINGS_INITIAL_WINDOW_SIZE, also to open streams."""
        more, self.initial_window = initial - self.initial_window, initial
        for stream in streams:
            if stream.window + more > UINT31_MAX:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a stream's window is too wide")
            stream.window += more  # may become negative (RFC 9113, 6.9.2)
        waiting = [*self.ready.values(), *self.blocked.values()]
        self.ready, self.blocked = {}, {}
        for stream in waiting:
            self._enqueue(stream)
        self.pump()


class FlowControl:
    """Flow control of received DATA."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.out = SendBuffer(self.response_complete)
        self.streams: dict[int, Http2Stream] = {}
        self.last = 0  # highest stream id
        self._now = now
        self._limiter, self._ages = FloodLimiter(now()), StreamAges(now())
        self._settled = False
        # Outstanding bytes of an incomplete DATA frame, its stream, and whether it has END_STREAM.
        self._missing, self._missing_stream, self._missing_ends = 0, 0, False
        self._credit = CONNECTION_WINDOW  # bytes that the peer may still send on the connection
        # Streams that were reset from here: what the peer sent before it knew may follow. Older ones are forgotten.
        self._cut_off: dict[int, None] = {}
        self._forgotten = 0
        self._updates = 0  # WINDOW_UPDATE frames of less than SMALL bytes

    def data(self, data: bytes, start: int, length: int, flags: int, number: int) -> int:
        """Hand on the available part of a DATA frame; return where it ends."""
        stream, ends = self._charge(length, flags, number), bool(flags & frames.END_STREAM)
        end = start + length
        if end > len(data):
            end, self._missing = len(data), end - len(data)
            self._missing_stream, self._missing_ends = number, ends
            ends = False
        if stream is not None:
            stream.ended = ends
            stream.on_data(data, start, end)
        return end

    def continue_data(self, data: bytes) -> int:
        """Hand on the rest of a DATA frame that began in an earlier read; return where it ends."""
        end = min(self._missing, len(data))
        self._missing -= end
        stream = self.streams.get(self._missing_stream)
        if stream is not None and not stream.ended:
            stream.ended = self._missing_ends and not self._missing
            stream.on_data(data, 0, end)
        return end

    def padded_data(self, flags: int, number: int, payload: bytes) -> None:
        stream = self._charge(len(payload), flags, number)
        end = len(payload) - payload[0] if payload else 0
        if end < 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA is shorter than its padding")
        if stream is not None:
            # Padding counts for flow control (RFC 9113, 6.1) but never reaches the stream, so it is granted back here.
            self.grant(stream, len(payload) - end + 1)
            stream.ended = bool(flags & frames.END_STREAM)
            stream.on_data(payload, 1, end)

    def _charge(self, length: int, flags: int, number: int) -> Http2Stream | None:
        """Take the length of a DATA frame off both windows; return its stream, None if it is closed."""
        if length > MAX_FRAME or not self._settled:
            problem = f"DATA has {length} bytes, at most {MAX_FRAME} are read"
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, problem)
        # The connection window is refilled on receipt, not when the data is read: only stream windows limit a slow
        # reader, so one slow stream does not block the others. Half a window saves an update per frame.
        self._credit -= length
        if self._credit < CONNECTION_WINDOW // 2:
            if self._credit < 0:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more data than the connection's window")
            self.out.frames.append(frames.window_update(0, CONNECTION_WINDOW - self._credit))
            self._credit = CONNECTION_WINDOW
            self.out.progress += 1
        stream = self.streams.get(number)
        if stream is None:
            crossed = self.was_cut_off(number)
            self.check_not_idle(number, "DATA", costs=length < SMALL or not crossed)
            if not crossed:
                self.out.frames.append(frames.rst_stream(number, frames.STREAM_CLOSED))
            return None
        if stream.ended or length > stream.credit:
            code = frames.STREAM_CLOSED if stream.ended else frames.FLOW_CONTROL_ERROR
            raise ConnectionFault(code, "more data than agreed")
        stream.credit -= length
        if not length and not flags & frames.END_STREAM:
            self.spend()
        return stream

    def grant(self, stream: Http2Stream, more: int) -> None:
        """Allow the peer to send more bytes on a stream."""
        stream.credit += more
        if not stream.ended:
            self.out.progress += 1
            self.out.frames.append(frames.window_update(stream.number, more))

    def window_update(self, _: int, number: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & frames.UINT31_MAX
        if not number:
            if not more:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.out.increase_window(more)
            self._count_update(more)
            return
        stream = self.streams.get(number)
        if stream is None:
            if number > self.last:
                self.check_not_idle(number, "WINDOW_UPDATE")
        elif not more or stream.window + more > frames.UINT31_MAX:
            # A stream error, not one of the connection (6.9.1).
            stream.on_reset()
            self.reset(stream, frames.FLOW_CONTROL_ERROR if more else frames.PROTOCOL_ERROR)
        else:
            self.out.increase_stream_window(stream, more)
            self._count_update(more)

    def _count_update(self, more: int) -> None:
        """Charge small WINDOW_UPDATE frames. Some clients send one after each frame, and grpcio a few bytes per call:
        two per full frame sent and one per stream are free. A client that grants byte by byte makes the server send
        1-byte frames."""
        if more < SMALL:
            self._updates += 1
            if self._updates > 2 * self.out.full_frames + self.last + 1:
                self.spend()

    def spend(self, amount: int = 1) -> None:
        if not self._limiter.spend(self._now(), amount):
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many empty frames")

    def check_not_idle(self, number: int, frame_name: str, *, costs: bool = True) -> None:
        """Check a frame for a stream that is not open: a closed one may have crossed its end, an idle one is an error.
        After an early refusal a whole window of DATA may follow, so large DATA frames cost nothing (`costs`)."""
        if not number or number > self.last:
            problem = f"{frame_name} for stream {number}, which was never opened"
            raise ConnectionFault(frames.PROTOCOL_ERROR, problem)
        if costs:
            self.spend()

    def reset(self, stream: Http2Stream, code: int) -> None:
        """Close a stream from the server side with RST_STREAM."""
        if self.streams.pop(stream.number, None) is not None:
            self.out.discard(stream)
            self.cut_off(stream.number, code)
            if code not in (frames.NO_ERROR, frames.CANCEL):
                self.spend()  # an error of the peer costs as much as its own RST_STREAM

    def cut_off(self, number: int, code: int) -> None:
        """Send RST_STREAM, and remember that frames of the peer may cross it."""
        self.out.frames.append(frames.rst_stream(number, code))
        self._cut_off[number] = None
        if len(self._cut_off) > MAX_CUT_OFF:
            self._forgotten = max(self._forgotten, oldest := next(iter(self._cut_off)))
            del self._cut_off[oldest]

    def was_cut_off(self, number: int) -> bool:
        """Whether DATA and HEADERS may still come for a closed stream: its peer did not end it (RFC 9113, 5.1)."""
        return number in self._cut_off or number <= self._forgotten

    def response_complete(self, stream: Http2Stream) -> None:
        """Close a stream after its response; also for callers that wrote it into `out.frames` themselves."""
        self._limiter.earn()
        self.out.progress += 1
        if stream.ended:
            self.streams.pop(stream.number, None)
        else:  # the rest of the request is not needed (RFC 9113, 8.1)
            self.reset(stream, frames.NO_ERROR)
