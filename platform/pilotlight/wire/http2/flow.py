"""DATA frames and receive windows of an HTTP/2 connection, and the limit of frames without payload.

Connection derives from it and handles all other frames. DATA is handed on in place, before its frame is complete:
large bodies are not assembled here.
"""

from collections.abc import Callable
from typing import Final

from pilotlight.wire.http2 import frames as f
from pilotlight.wire.http2.allowance import FloodLimiter, StreamAges
from pilotlight.wire.http2.frames import ConnectionFault
from pilotlight.wire.http2.outgoing import Http2Stream, SendBuffer

MAX_FRAME: Final = 1 << 18  # bytes of DATA: one frame header for as much as a socket read returns
STREAM_WINDOW: Final = 1 << 20
CONNECTION_WINDOW: Final = 1 << 24
SMALL: Final = 1 << 10  # bytes of DATA or of a WINDOW_UPDATE below which the frame costs more than it carries


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
        self._updates = 0  # WINDOW_UPDATE frames of less than SMALL bytes

    def data(self, data: bytes, start: int, length: int, flags: int, number: int) -> int:
        """Hand on the available part of a DATA frame; return where it ends."""
        stream, ends = self._charge(length, flags, number), bool(flags & f.END_STREAM)
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
            raise ConnectionFault(f.PROTOCOL_ERROR, "DATA is shorter than its padding")
        if stream is not None:
            # Padding counts for flow control (RFC 9113, 6.1) but never reaches the stream, so it is granted back here.
            self.grant(stream, len(payload) - end + 1)
            stream.ended = bool(flags & f.END_STREAM)
            stream.on_data(payload, 1, end)

    def _charge(self, length: int, flags: int, number: int) -> Http2Stream | None:
        """Take the length of a DATA frame off both windows; return its stream, None if it is closed."""
        if length > MAX_FRAME or not self._settled:
            raise ConnectionFault(f.FRAME_SIZE_ERROR, f"DATA has {length} bytes, at most {MAX_FRAME} are read")
        # The connection window is refilled on receipt, not when the data is read: only stream windows limit a slow
        # reader, so one slow stream does not block the others. Half a window saves an update per frame.
        self._credit -= length
        if self._credit < CONNECTION_WINDOW // 2:
            if self._credit < 0:
                raise ConnectionFault(f.FLOW_CONTROL_ERROR, "more data than the connection's window")
            self.out.frames.append(f.window_update(0, CONNECTION_WINDOW - self._credit))
            self._credit = CONNECTION_WINDOW
        stream = self.streams.get(number)
        if stream is None:
            self.check_not_idle(number, "DATA", costs=length < SMALL)
            return None
        if stream.ended or length > stream.credit:
            raise ConnectionFault(f.STREAM_CLOSED if stream.ended else f.FLOW_CONTROL_ERROR, "more data than agreed")
        stream.credit -= length
        if not length and not flags & f.END_STREAM:
            self.spend()
        return stream

    def grant(self, stream: Http2Stream, more: int) -> None:
        """Allow the peer to send more bytes on a stream."""
        stream.credit += more
        if not stream.ended:
            self.out.frames.append(f.window_update(stream.number, more))

    def window_update(self, _: int, number: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & f.UINT31_MAX
        if not number:
            if not more:
                raise ConnectionFault(f.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.out.increase_window(more)
            self._count_update(more)
            return
        stream = self.streams.get(number)
        if stream is None:
            if number > self.last:
                self.check_not_idle(number, "WINDOW_UPDATE")
        elif not more or stream.window + more > f.UINT31_MAX:  # a stream error, not one of the connection (6.9.1)
            stream.on_reset()
            self.reset(stream, f.FLOW_CONTROL_ERROR if more else f.PROTOCOL_ERROR)
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
            raise ConnectionFault(f.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def check_not_idle(self, number: int, frame_name: str, *, costs: bool = True) -> None:
        """Check a frame for a stream that is not open: a closed one may have crossed its end, an idle one is an error.
        After an early refusal a whole window of DATA may follow, so large DATA frames cost nothing (`costs`)."""
        if not number or number > self.last:
            raise ConnectionFault(f.PROTOCOL_ERROR, f"{frame_name} for stream {number}, which was never opened")
        if costs:
            self.spend()

    def reset(self, stream: Http2Stream, code: int) -> None:
        """Close a stream from the server side with RST_STREAM."""
        if self.streams.pop(stream.number, None) is not None:
            self.out.discard(stream)
            self.out.frames.append(f.rst_stream(stream.number, code))
            if code not in (f.NO_ERROR, f.CANCEL):
                self.spend()  # an error of the peer costs as much as its own RST_STREAM

    def response_complete(self, stream: Http2Stream) -> None:
        """Close a stream whose response is complete; also for callers that wrote it into `out.frames` themselves."""
        self._limiter.earn()
        if stream.ended:
            self.streams.pop(stream.number, None)
        else:  # the rest of the request is not needed (RFC 9113, 8.1)
            self.reset(stream, f.NO_ERROR)
