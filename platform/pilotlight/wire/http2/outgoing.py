"""What leaves: frames in the order in which they are written, and data that waits until the peer takes it.

A stream's data goes at once where both windows, the connection's and the stream's, have room for it; else it waits, a
frame of each stream in turn. `held` says that the socket takes no more: then data waits whatever the windows say.

Streams whose own window is shut wait apart from those that would go on: whatever a window grows by, nobody walks past
streams for which that means nothing.
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
    WIDEST,
    ConnectionFault,
    frame,
)

SMALL: Final = 1 << 16
BURST: Final = 1 << 20  # bytes of data between two looks at whether the socket takes them


class Stream:
    """One request and its answer. Whoever serves it derives from this."""

    __slots__ = ("credit", "ended", "number", "tail", "waiting", "window")

    def __init__(self, number: int, window: int, credit: int, *, ended: bool) -> None:
        self.number = number
        self.window = window  # bytes that the peer takes
        self.credit = credit  # bytes that the peer may send
        self.ended = ended  # the peer has sent its last
        self.waiting: deque[memoryview] | None = None
        self.tail: bytes | None = None  # the block that ends the answer, behind what waits

    def take(self, data: Buffer, start: int, end: int) -> None:
        """These bytes of the request have come, or its end: `ended` says so."""

    def gone(self) -> None:
        """The peer has given it up, or the connection is lost."""

    def drained(self) -> None:
        """What waited has been written."""


class Outgoing:
    def __init__(self, over: Callable[[Stream], None]) -> None:
        self.frames: list[Buffer] = []
        self.window, self.initial, self.largest = DEFAULT_WINDOW, DEFAULT_WINDOW, DEFAULT_FRAME
        self.held = False
        self._over = over  # called when the answer of a stream is complete
        self.whole = 0  # pieces of data that went without being cut by a window
        self.ready: dict[int, Stream] = {}  # these have data, and room in their own window, in the order of their turns
        self.shut: dict[int, Stream] = {}  # these have data and no room
        self._burst = 0

    def head(self, stream: Stream, block: bytes) -> None:
        self.frames.append(frame(HEADERS, END_HEADERS, stream.number, block))

    def data(self, stream: Stream, data: Buffer) -> None:
        if stream.waiting is None:
            stream.waiting = deque()
        stream.waiting.append(memoryview(data))
        self._line_up(stream)
        self.pump()

    def _line_up(self, stream: Stream) -> None:
        if stream.window > 0:
            self.ready[stream.number] = stream
        else:
            self.shut[stream.number] = stream

    def end(self, stream: Stream, block: bytes) -> None:
        """Ends the answer by a block of its own, once all data has gone."""
        if stream.waiting:
            stream.tail = block
            return
        self.frames.append(frame(HEADERS, END_HEADERS | END_STREAM, stream.number, block))
        self._over(stream)

    def fits(self, stream: Stream, length: int) -> bool:
        """Whether that much data may go at once, in one frame, with nothing before it."""
        return length <= self.largest and length <= self.window and length <= stream.window and not self.held

    def pump(self) -> None:
        """As much as windows and socket take; one frame of each stream that waits, again and again."""
        while self.ready and self.window > 0 and not self.held and self._burst < BURST:
            stream = self.ready.pop(next(iter(self.ready)))
            self._push(stream)

    def backlog(self) -> dict[int, tuple[int, int]]:
        """By number of each stream that waits: its pieces and the length of the first, which change when it moves."""
        waiting = (*self.ready.values(), *self.shut.values())
        return {each.number: (len(each.waiting), len(each.waiting[0])) for each in waiting if each.waiting}

    @property
    def bursting(self) -> bool:
        """Whether there is so much to be written that it had better not be copied."""
        return self._burst > SMALL

    def taken(self) -> list[Buffer]:
        """Everything that is to be written now."""
        frames, self.frames, self._burst = self.frames, [], 0
        return frames

    def forget(self, stream: Stream) -> None:
        self.ready.pop(stream.number, None)
        self.shut.pop(stream.number, None)
        stream.waiting = None

    def _push(self, stream: Stream) -> None:
        """One frame of a stream that has left the line; it goes back to its end."""
        assert stream.waiting
        piece = stream.waiting[0]
        size = min(len(piece), self.largest, self.window, stream.window)
        self.frames += (HEAD.pack(size << 8 | DATA, 0, stream.number), piece[:size])
        self.window -= size
        stream.window -= size
        self._burst += size
        self.whole += size in (len(piece), self.largest)
        if size < len(piece):
            stream.waiting[0] = piece[size:]
        else:
            stream.waiting.popleft()
        if stream.waiting:
            self._line_up(stream)
        else:
            self._emptied(stream)

    def _emptied(self, stream: Stream) -> None:
        if stream.tail is not None:
            self.end(stream, stream.tail)
        else:
            stream.drained()

    def widen(self, more: int) -> None:
        if self.window + more > WIDEST:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "the connection's window is too wide")
        self.window += more
        self.pump()

    def widen_stream(self, stream: Stream, more: int) -> None:
        stream.window += more
        if stream.window > 0 and self.shut.pop(stream.number, None) is not None:
            self.ready[stream.number] = stream
            self.pump()

    def widen_all(self, initial: int, streams: "list[Stream]") -> None:
        """The peer has set another initial window: it counts for streams that are open, too."""
        more, self.initial = initial - self.initial, initial
        for stream in streams:
            if stream.window + more > WIDEST:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a stream's window is too wide")
            stream.window += more
        waiting = [*self.ready.values(), *self.shut.values()]
        self.ready, self.shut = {}, {}
        for stream in waiting:
            self._line_up(stream)
        self.pump()
