"""Data and windows of a connection of HTTP/2, and what a peer pays for frames that bring nothing.

connection.py derives from it and reads everything else. Data is handed on where it lies, before its frame is whole: of
a large body nothing is put together here.
"""

from collections.abc import Callable
from typing import Final

from pilotlight.wire.http2 import frames as f
from pilotlight.wire.http2.allowance import Ages, Allowance
from pilotlight.wire.http2.frames import ConnectionFault
from pilotlight.wire.http2.outgoing import Outgoing, Stream

MAX_FRAME: Final = 1 << 18  # bytes of data in a frame: one look at its head for as much as a socket gives at once
STREAM_WINDOW: Final = 1 << 20
WINDOW: Final = 1 << 24
SMALL: Final = 1 << 10  # bytes of data, or by which a window grows, that are hardly worth a frame


class Flow:
    def __init__(self, now: Callable[[], float]) -> None:
        self.out = Outgoing(self._over)
        self.streams: dict[int, Stream] = {}
        self.last = 0  # the highest number of a stream that was opened
        self._now = now
        self._allowance, self._ages = Allowance(now()), Ages(now())
        self._settled = False
        self._rest, self._rest_of, self._rest_ends = 0, 0, False  # of a DATA frame that has not come in full
        self._credit = WINDOW
        self._updates = 0  # small ones of windows

    def data(self, data: bytes, start: int, length: int, flags: int, number: int) -> int:
        """Hands on what there is of the frame; returns where that ends."""
        stream, ends = self._charged(length, flags, number), bool(flags & f.END_STREAM)
        end = start + length
        if end > len(data):
            end, self._rest = len(data), end - len(data)
            self._rest_of, self._rest_ends = number, ends
            ends = False
        if stream is not None:
            stream.ended = ends
            stream.take(data, start, end)
        return end

    def take_rest(self, data: bytes) -> int:
        end = min(self._rest, len(data))
        self._rest -= end
        stream = self.streams.get(self._rest_of)
        if stream is not None and not stream.ended:
            stream.ended = self._rest_ends and not self._rest
            stream.take(data, 0, end)
        return end

    def padded_data(self, flags: int, number: int, payload: bytes) -> None:
        stream = self._charged(len(payload), flags, number)
        end = len(payload) - payload[0] if payload else 0
        if end < 1:
            raise ConnectionFault(f.PROTOCOL_ERROR, "DATA is shorter than its padding")
        if stream is not None:
            self.grant(stream, len(payload) - end + 1)
            stream.ended = bool(flags & f.END_STREAM)
            stream.take(payload, 1, end)

    def _charged(self, length: int, flags: int, number: int) -> Stream | None:
        """The stream of a DATA frame, its length taken off the windows; None when nobody wants it any more."""
        if length > MAX_FRAME or not self._settled:
            raise ConnectionFault(f.FRAME_SIZE_ERROR, f"DATA has {length} bytes, at most {MAX_FRAME} are read")
        self._credit -= length
        if self._credit < WINDOW // 2:
            if self._credit < 0:
                raise ConnectionFault(f.FLOW_CONTROL_ERROR, "more data than the connection's window")
            self.out.frames.append(f.window_update(0, WINDOW - self._credit))
            self._credit = WINDOW
        stream = self.streams.get(number)
        if stream is None:
            self.stray(number, "DATA", costs=length < SMALL)
            return None
        if stream.ended or length > stream.credit:
            raise ConnectionFault(f.STREAM_CLOSED if stream.ended else f.FLOW_CONTROL_ERROR, "more data than agreed")
        stream.credit -= length
        if not length and not flags & f.END_STREAM:
            self.spend()
        return stream

    def grant(self, stream: Stream, more: int) -> None:
        """The peer may send so much more on a stream."""
        stream.credit += more
        if not stream.ended:
            self.out.frames.append(f.window_update(stream.number, more))

    def window_update(self, _: int, number: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & f.WIDEST
        if not number:
            if not more:
                raise ConnectionFault(f.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.out.widen(more)
            self._updated(more)
            return
        stream = self.streams.get(number)
        if stream is None:
            if number > self.last:
                self.stray(number, "WINDOW_UPDATE")
        elif not more or stream.window + more > f.WIDEST:
            stream.gone()
            self.reset(stream, f.FLOW_CONTROL_ERROR if more else f.PROTOCOL_ERROR)
        else:
            self.out.widen_stream(stream, more)
            self._updated(more)

    def _updated(self, more: int) -> None:
        """Some clients grant what they have read after each frame, however small, and grpcio some bytes for each call:
        two updates for each are theirs by right. Who grants byte by byte has us make frames of a byte."""
        if more < SMALL:
            self._updates += 1
            if self._updates > 2 * self.out.whole + self.last + 1:
                self.spend()

    def spend(self, amount: int = 1) -> None:
        if not self._allowance.spend(self._now(), amount):
            raise ConnectionFault(f.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def stray(self, number: int, what: str, *, costs: bool = True) -> None:
        """A frame for a stream that is over may have crossed its end; for one that never began it is an error. A call
        that is refused early may be followed by a window of data, whose frames are as large as their sender likes."""
        if not number or number > self.last:
            raise ConnectionFault(f.PROTOCOL_ERROR, f"{what} for stream {number}, which was never opened")
        if costs:
            self.spend()

    def reset(self, stream: Stream, code: int) -> None:
        """Ends a stream from our side, whatever is still to come of it."""
        if self.streams.pop(stream.number, None) is not None:
            self.out.forget(stream)
            self.out.frames.append(f.rst_stream(stream.number, code))
            if code not in (f.NO_ERROR, f.CANCEL):
                self.spend()  # a mistake of the peer's, which costs as much as if it had reset the stream itself

    def _over(self, stream: Stream) -> None:
        """Its answer is complete. A peer that still sends is asked to stop."""
        self._allowance.earn()
        if stream.ended:
            self.streams.pop(stream.number, None)
        else:
            self.reset(stream, f.NO_ERROR)

    def answered(self, stream: Stream) -> None:
        """For whoever writes a whole answer into `out.frames` by itself."""
        self._over(stream)
