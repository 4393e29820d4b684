"""Messages of one gRPC stream: reassembly from frames, stepwise decompression, arrival timeout, and the queue.

Frames are copied once, into the message; memory grows with the bytes received, not with the announced length. Data may
expand a thousandfold: it is decompressed step by step, and the caller stops when the byte budget is used up.
"""

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.threads import ThreadLimiter
from pilotlight_predictor.errors import QueueFull, RequestTooLarge, Unreadable
from pilotlight_predictor.frontends.tasks_and_timeouts import SCARCE_S, Arrival

INLINE_BYTES: Final = 1 << 18  # decompressed on the event loop
STEP_BYTES: Final = 1 << 22  # between two checks of the byte budget
_SLICE: Final = 1 << 10  # bytes of input, which expand to 1 MiB at most
WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
PREFIX: Final = struct.Struct(">BI")  # flag, length
LARGE: Final = 1 << 16  # bytes from which a message is passed on as a view instead of copied to bytes
SETTING: Final = "--http-max-input-size"  # named in the error for a message that is too large
MESSAGE_OVERHEAD: Final = 64  # bytes accounted per message beyond its own


class CompressedMessage:
    """One compressed message; its length is all memory it holds, compressed and plain."""

    __slots__ = ("_at", "_decompressor", "_encoding", "_max_size", "_plain", "_view")

    def __init__(self, message: Buffer, encoding: str, max_size: int) -> None:
        if encoding not in WINDOW_BITS:
            raise Unreadable("a message is compressed, and grpc-encoding does not say how")
        self._view, self._at = memoryview(message), 0
        self._encoding, self._max_size = encoding, max_size
        self._decompressor = zlib.decompressobj(WINDOW_BITS[encoding])
        self._plain = bytearray()

    def __len__(self) -> int:
        return len(self._view) + len(self._plain)

    def decompress(self, step: int) -> Buffer | None:
        """Decompress about `step` bytes more; return the message when it is complete, else None."""
        until = len(self._plain) + step
        while self._at < len(self._view) and len(self._plain) < until:
            self._decompress_slice()
            if self._decompressor.eof:
                return bytes(self._plain) if step <= INLINE_BYTES else memoryview(self._plain).toreadonly()
        if self._at >= len(self._view):
            raise Unreadable(f"a message is cut off within its {self._encoding}")
        return None

    def _decompress_slice(self) -> None:
        try:
            self._plain += self._decompressor.decompress(self._view[self._at : self._at + _SLICE])
        except zlib.error as error:
            raise Unreadable(f"a message is not {self._encoding}: {error}") from None
        self._at += _SLICE
        if len(self._plain) > self._max_size:
            raise RequestTooLarge(f"the decompressed message exceeds {self._max_size} bytes ({SETTING})")


class RejectedMessage(bytes):
    """Placeholder of a streamed message that exceeded the byte budget: its response is the error."""

    error: QueueFull

    @classmethod
    def from_error(cls, error: QueueFull) -> "RejectedMessage":
        rejected = cls()
        rejected.error = error
        return rejected


class Reassembler:
    """Reader of length-prefixed messages of at most `max_size` bytes."""

    __slots__ = ("_compressed", "_encoding", "_max_size", "_prefix", "missing", "partial", "skipping")

    def __init__(self, max_size: int, encoding: str) -> None:
        self._max_size, self._encoding = max_size, encoding
        self._prefix = b""
        self._compressed = 0
        self.partial: bytearray | None = None  # the message that is arriving
        self.missing = 0  # bytes of it still to come
        self.skipping = False  # its bytes are discarded

    def feed(self, data: Buffer, start: int, end: int) -> list[Buffer | CompressedMessage]:
        """Return the messages that these bytes complete. Raise Unreadable or RequestTooLarge."""
        messages: list[Buffer | CompressedMessage] = []
        view = memoryview(data)
        while start < end or (self.partial is not None and not self.missing):
            if self.partial is None:
                start = self._read_prefix(view, start, end)
                continue
            used = min(self.missing, end - start)
            if not self.skipping:
                self.partial += view[start : start + used]
            self.missing -= used
            start += used
            if not self.missing:
                message = self.partial
                if not self.skipping and self._compressed:
                    messages.append(CompressedMessage(message, self._encoding, self._max_size))
                elif not self.skipping:
                    messages.append(bytes(message) if len(message) < LARGE else memoryview(message).toreadonly())
                self.partial, self.skipping = None, False
        return messages

    def _read_prefix(self, view: memoryview, start: int, end: int) -> int:
        """Read the five-byte prefix, which may be split over frames; return the new position."""
        used = min(PREFIX.size - len(self._prefix), end - start)
        self._prefix += view[start : start + used]
        if len(self._prefix) == PREFIX.size:
            self._compressed, self.missing = PREFIX.unpack(self._prefix)
            self._prefix, self.partial = b"", bytearray()
            if self._compressed > 1:
                raise Unreadable(f"the flag of a message is {self._compressed}, must be 0 or 1")
            if self.missing > self._max_size:
                problem = f"the message has {self.missing} bytes, the limit is {self._max_size} ({SETTING})"
                raise RequestTooLarge(problem)
        return start + used

    @property
    def size(self) -> int:
        """Bytes held of the partial message."""
        return len(self.partial) if self.partial is not None else 0

    @property
    def in_message(self) -> bool:
        """Whether a message or its prefix is incomplete."""
        return self.partial is not None or bool(self._prefix)

    def skip(self) -> None:
        """Discard the arriving message; the next one begins where it ends."""
        self.partial, self.skipping = bytearray(), True


class ArrivalTimer:
    """Timer that calls `late` when a message stalls: it occupies bytes of the shared budget.

    `received` returns its bytes so far, or None if no message is arriving.
    """

    __slots__ = ("_arrival", "_late", "_received", "_slow_s", "_timer")

    def __init__(
        self, received: Callable[[], int | None], late: Callable[[], None], slow_s: Callable[[], float]
    ) -> None:
        self._received, self._late, self._slow_s = received, late, slow_s
        self._arrival = Arrival(0.0)
        self._timer: asyncio.TimerHandle | None = None

    def message_started(self) -> None:
        """Record the first bytes of a message. The running timer serves all later messages that arrive in time."""
        loop = asyncio.get_running_loop()
        self._arrival = Arrival(loop.time())
        if self._timer is None:
            self._timer = loop.call_later(SCARCE_S, self._check)

    def _check(self) -> None:
        loop, received = asyncio.get_running_loop(), self._received()
        self._timer = None
        if received is None:
            return
        if self._arrival.is_overdue(received, loop.time(), self._slow_s()):
            self._late()
        else:
            self._timer = loop.call_later(SCARCE_S, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class MessageQueue:
    """Async iterator, for one reader. `changed` is called when `size` changes; it raises QueueFull."""

    def __init__(self, changed: Callable[[], None], codecs: ThreadLimiter) -> None:
        self.size = 0  # bytes of the queued messages
        self._messages: deque[Buffer | CompressedMessage] = deque()
        self._changed, self._codecs = changed, codecs
        self._rejected = 0  # how many of the newest messages are rejected
        self._decompressing = self._ended = False
        self._reason: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: Buffer | CompressedMessage) -> None:
        self._messages.append(message)
        self._rejected = 0
        self.size += len(message) + MESSAGE_OVERHEAD
        self._wake()

    def end(self, reason: Exception | None = None) -> None:
        """End the stream after the queued messages; the reader then gets `reason`, if any, as an exception."""
        if not self._ended:
            self._ended, self._reason = True, reason
            self._wake()

    @property
    def empty(self) -> bool:
        return not self._messages

    def reject_newest(self, error: QueueFull) -> bool:
        """Replace the newest message that is not rejected yet by its error; return False if there is none."""
        index = len(self._messages) - 1 - self._rejected
        # The first message must stay while it is being decompressed.
        if index < self._decompressing or isinstance(self._messages[index], RejectedMessage):
            return False
        self._replace(index, RejectedMessage.from_error(error))
        self._rejected += 1
        return True

    def _replace(self, index: int, message: Buffer) -> None:
        self.size += len(message) - len(self._messages[index])
        self._messages[index] = message

    def __aiter__(self) -> "MessageQueue":
        return self

    async def __anext__(self) -> Buffer:
        while not self._messages:
            if self._ended:
                raise StopAsyncIteration if self._reason is None else self._reason
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        first = self._messages[0]
        message = await self._decompress(first) if isinstance(first, CompressedMessage) else first
        self.size -= len(self._messages.popleft()) + MESSAGE_OVERHEAD
        self._changed()
        return message

    async def _decompress(self, compressed: CompressedMessage) -> Buffer:
        """Return the plain message, or a RejectedMessage if the byte budget does not suffice for it."""
        self._decompressing = True
        try:
            return await self._decompress_steps(compressed)
        except QueueFull as error:
            self._replace(0, RejectedMessage.from_error(error))
            return RejectedMessage.from_error(error)
        finally:
            self._decompressing = False

    async def _decompress_steps(self, compressed: CompressedMessage) -> Buffer:
        before, plain = len(compressed), compressed.decompress(INLINE_BYTES)
        while True:
            self.size += len(compressed) - before
            self._changed()
            if plain is not None:
                return plain
            before, plain = len(compressed), await self._codecs.run(lambda: compressed.decompress(STEP_BYTES))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
