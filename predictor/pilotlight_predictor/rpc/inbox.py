"""The messages of a stream on their way from its connection to the handler that reads them, one after the other."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import QueueFull
from pilotlight_predictor.rpc.packed import AT_ONCE, STEP, Packed, Refused
from pilotlight_predictor.threads import FewThreads

COST: Final = 64  # bytes that a message holds beyond its own


class Inbox:
    """Iterated once. `changed` is called when what waits has become less or more; it raises QueueFull."""

    def __init__(self, changed: Callable[[], None], codecs: FewThreads) -> None:
        self.size = 0  # bytes that what waits holds
        self._messages: deque[Buffer | Packed] = deque()
        self._changed, self._codecs = changed, codecs
        self._given_up = 0  # of the newest messages
        self._unpacking = self._ended = False
        self._reason: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: Buffer | Packed) -> None:
        self._messages.append(message)
        self._given_up = 0
        self.size += len(message) + COST
        self._wake()

    def end(self, reason: Exception | None = None) -> None:
        """Behind what waits; with a reason, which the reader is told."""
        if not self._ended:
            self._ended, self._reason = True, reason
            self._wake()

    @property
    def empty(self) -> bool:
        return not self._messages

    def give_up(self, error: QueueFull) -> bool:
        """Puts the error in the place of the newest message, where that holds anything."""
        place = len(self._messages) - 1 - self._given_up
        if place < self._unpacking or isinstance(self._messages[place], Refused):
            return False
        self._replace(place, Refused.by(error))
        self._given_up += 1
        return True

    def _replace(self, place: int, message: Buffer) -> None:
        self.size += len(message) - len(self._messages[place])
        self._messages[place] = message

    def __aiter__(self) -> "Inbox":
        return self

    async def __anext__(self) -> Buffer:
        while not self._messages:
            if self._ended:
                raise StopAsyncIteration if self._reason is None else self._reason
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        first = self._messages[0]
        message = await self._plain(first) if isinstance(first, Packed) else first
        self.size -= len(self._messages.popleft()) + COST
        self._changed()
        return message

    async def _plain(self, packed: Packed) -> Buffer:
        """Its error instead, where there is no room for what it becomes."""
        self._unpacking = True
        try:
            return await self._unpacked(packed)
        except QueueFull as error:
            self._replace(0, Refused.by(error))
            return Refused.by(error)
        finally:
            self._unpacking = False

    async def _unpacked(self, packed: Packed) -> Buffer:
        before, plain = len(packed), packed.unpack(AT_ONCE)
        while True:
            self.size += len(packed) - before
            self._changed()
            if plain is not None:
                return plain
            before, plain = len(packed), await self._codecs.run(lambda: packed.unpack(STEP))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
