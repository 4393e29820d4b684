"""The answers of one stream: in the order of its requests, many of which may be under way at once.

A request that has any number of answers (of a decoupled model) leaves that order: its answers go out as they come, and
nobody waits for it. Answers are taken as fast as the client reads them, which holds back whoever writes here.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.rpc.service import Messages

PARTS_AHEAD: Final = 16  # answers of requests with many that wait for the client
Answer = Callable[[Buffer, "Outlet"], Coroutine[Any, Any, bytes]]  # gives the only answer, or the last; b"" is none


def in_order(messages: Messages, answer: Answer, ahead: int) -> AsyncIterator[bytes]:
    """`ahead` requests may be under way; the next one is read when one of them was answered in full."""
    return _Stream(messages, answer, ahead).run()


class Outlet:
    """Where a request with any number of answers writes all but its last."""

    def __init__(self, stream: "_Stream") -> None:
        self._stream = stream
        self.turn = stream.turn
        self.task: asyncio.Task[bytes] | None = None
        self.in_order = True

    async def write(self, answer: bytes) -> None:
        """Waits for a client that reads slowly."""
        self.leave_order()
        await self._stream.put_part(answer)

    def leave_order(self) -> None:
        if self.in_order:
            self.in_order = False
            self._stream.left_order(self)


class _Stream:
    def __init__(self, messages: Messages, answer: Answer, ahead: int) -> None:
        self._messages, self._answer = messages, answer
        self._order: deque[Outlet] = deque()
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._slots, self._room = asyncio.Semaphore(ahead), asyncio.Semaphore(PARTS_AHEAD)
        self._out: asyncio.Queue[tuple[Callable[[], bytes], asyncio.Semaphore] | None] = asyncio.Queue()
        self._all_read = False
        self.turn = asyncio.Lock()  # held while a message is read, so that a short one does not overtake a long one

    async def run(self) -> AsyncIterator[bytes]:
        reader = asyncio.ensure_future(self._read())
        try:
            while (entry := await self._out.get()) is not None:
                answer, place = entry
                if written := answer():
                    yield written
                place.release()
            await reader
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()

    async def _read(self) -> None:
        try:
            async for message in self._messages:
                await self._slots.acquire()
                self._begin(message)
        finally:
            self._all_read = True
            self._end_if_done()

    def _begin(self, message: Buffer) -> None:
        outlet = Outlet(self)
        self._order.append(outlet)
        outlet.task = task = asyncio.ensure_future(self._answer(message, outlet))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._answered(outlet))

    def _answered(self, outlet: Outlet) -> None:
        if not outlet.in_order:
            self._put_last(outlet)
        self._flush()

    def left_order(self, outlet: Outlet) -> None:
        self._order.remove(outlet)
        self._flush()

    def _flush(self) -> None:
        while self._order and self._order[0].task is not None and self._order[0].task.done():
            self._put_last(self._order.popleft())
        self._end_if_done()

    def _put_last(self, outlet: Outlet) -> None:
        assert outlet.task is not None
        self._tasks.discard(outlet.task)
        self._out.put_nowait((outlet.task.result, self._slots))

    async def put_part(self, answer: bytes) -> None:
        await self._room.acquire()
        self._out.put_nowait((lambda: answer, self._room))

    def _end_if_done(self) -> None:
        if self._all_read and not self._tasks:
            self._out.put_nowait(None)
