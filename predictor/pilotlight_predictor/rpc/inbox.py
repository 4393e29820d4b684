"""Queue of the messages of one stream, between its connection and its handler."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import QueueFull
from pilotlight_predictor.rpc.packed import INLINE_BYTES, STEP_BYTES, CompressedMessage, RejectedMessage
from pilotlight_predictor.threads import ThreadLimiter

MESSAGE_OVERHEAD: Final = 64  # bytes accounted per message beyond its own


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
