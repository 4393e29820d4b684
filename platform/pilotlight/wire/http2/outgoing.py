"""Send side of an HTTP/2 connection: frames in write order, and data that waits for flow control.

Data is sent at once where the windows of connection and stream allow it; else it waits, one frame per stream in turn.
`paused` is set while the socket's buffer is full: data waits then whatever the windows are.

Streams with an exhausted window of their own are queued apart (`blocked`), so that a WINDOW_UPDATE of the connection
does not iterate over streams that it does not help.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from pilotlight.wire.http1 import Buffer
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
    frame,
)

SMALL: Final = 1 << 16
BURST: Final = 1 << 20  # bytes of DATA between two checks of the socket


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
    """Frames to be written, with the send windows."""

    def __init__(self, on_complete: Callable[[Http2Stream], None]) -> None:
        self.frames: list[Buffer] = []
        self.window, self.initial_window, self.max_frame_size = DEFAULT_WINDOW, DEFAULT_WINDOW, DEFAULT_FRAME
        self.paused = False
        self._on_complete = on_complete  # called when the response of a stream is complete
        self.full_frames = 0  # DATA frames that no window has cut
        self.ready: dict[int, Http2Stream] = {}  # with data and a positive window, in the order of their turns
        self.blocked: dict[int, Http2Stream] = {}  # with data and an exhausted window
        self._burst = 0

    def head(self, stream: Http2Stream, block: bytes) -> None:
        self.frames.append(frame(HEADERS, END_HEADERS, stream.number, block))

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
        """Whether this much data can go now, in one frame, with nothing queued before it."""
        return length <= self.max_frame_size and length <= self.window and length <= stream.window and not self.paused

    def pump(self) -> None:
        """Send as much as windows and socket allow, one frame per waiting stream in turn."""
        while self.ready and self.window > 0 and not self.paused and self._burst < BURST:
            self._send_frame(self.ready.pop(next(iter(self.ready))))

    def backlog(self) -> dict[int, tuple[int, int]]:
        """Return pieces and length of the first piece by id of each pending stream; both change with every progress."""
        waiting = (*self.ready.values(), *self.blocked.values())
        return {each.number: (len(each.pending), len(each.pending[0])) for each in waiting if each.pending}

    @property
    def bursting(self) -> bool:
        """Whether so much is waiting to be written that joining it would be a costly copy."""
        return self._burst > SMALL

    def take_frames(self) -> list[Buffer]:
        """Return and clear the frames to be written."""
        frames, self.frames, self._burst = self.frames, [], 0
        return frames

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
        self._burst += size
        self.full_frames += size in (len(piece), self.max_frame_size)
        if size < len(piece):
            stream.pending[0] = piece[size:]
        else:
            stream.pending.popleft()
        if stream.pending:
            self._enqueue(stream)
        elif stream.trailers is not None:
            self.end(stream, stream.trailers)
        else:
            stream.on_drained()

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
