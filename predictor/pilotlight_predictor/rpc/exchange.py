"""One gRPC call: a stream of HTTP/2 from its head to its trailers.

connection.py opens it and hands it the bytes of its request, which intake.py makes messages of; desk.py, behind
`head.post`, says what they are answered with. A call of one message that is answered at once has no task, no future and
no timer: it ends within `take`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2.flow import STREAM_WINDOW
from pilotlight_predictor.errors import (
    DeadlineExceeded,
    NotReady,
    PredictorError,
)
from pilotlight_predictor.rpc.call_head import CallHead
from pilotlight_predictor.rpc.desk import Later
from pilotlight_predictor.rpc.inbox import Inbox
from pilotlight_predictor.rpc.intake import Intake, Line
from pilotlight_predictor.rpc.service import RpcCall
from pilotlight_predictor.rpc.statuses import RpcRefusal


class Exchange(Intake):
    __slots__ = ("_deadline", "_drop", "_room", "_task", "_timer", "headed")

    def __init__(self, line: Line, number: int, head: CallHead, *, ended: bool) -> None:
        super().__init__(number, line.http.out.initial, STREAM_WINDOW, ended=ended)
        self._line, self.head = line, head
        self.headed = self.over = False
        self.call = self._gathering = self._arrival = self._inbox = self._message = None
        self._held = self._owed = 0
        self._task: asyncio.Task[None] | None = None
        self._drop: Callable[[], None] | None = None  # until the task has had its first step
        self._timer: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None
        self._deadline = None if head.timeout is None else perf_counter() + head.timeout

    @property
    def peer(self) -> str:
        return self._line.peer

    def time_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - perf_counter()

    def begin(self) -> None:
        """Who may not call is told before anything else is read."""
        post = self.head.post
        if not post.asks and not post.streams:
            return
        self.call = post.arrived(self)
        refused = post.judged(self.call)
        if refused is not None:
            self.refuse(refused)
        elif post.streams:
            self._inbox = Inbox(self._account, self._line.codecs)
            self._drop = partial(post.left, self.call)
            self.run(self._converse(self.call, self._inbox))

    async def _converse(self, call: RpcCall, inbox: Inbox) -> None:
        self._drop = None
        await self.head.post.stream(call, inbox, self)

    def reject(self, error: PredictorError) -> None:
        """What has come of the request is as far as it gets."""
        post = self.head.post
        self.refuse(post.refused(self.call or post.arrived(self), error))

    def ask(self, message: Buffer) -> None:
        post = self.head.post
        call = self.call = self.call or post.arrived(self)
        call.body = message
        outcome = post.answered(call)
        if isinstance(outcome, bytes):
            self._line.answer(self, outcome)
        elif isinstance(outcome, RpcRefusal):
            self.refuse(outcome)
        else:
            self._drop = outcome.drop
            self.run(self._answer_later(outcome))

    async def _answer_later(self, outcome: Later) -> None:
        self._drop = None
        answer = await outcome.begin()
        if isinstance(answer, RpcRefusal):
            self.refuse(answer)
        elif not self.over:
            self._line.answer(self, answer)
            self._line.flush_soon()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self.run_out_of_time()

    def run_out_of_time(self) -> None:
        if self._timer is None and (left := self.time_left()) is not None:
            self._timer = asyncio.get_running_loop().call_later(left, self._expire)

    def _expire(self) -> None:
        self._deadline = perf_counter()
        if self._task is None:
            self.reject(DeadlineExceeded("the call's deadline has passed"))
        else:
            self.fail("DEADLINE_EXCEEDED", "the call's deadline has passed")

    async def write(self, answer: bytes) -> None:
        """One of many answers; waits for a client that reads slowly."""
        if self.over:
            return
        self._line.send(self, answer)
        self._line.flush_soon()
        if self.waiting:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def finish(self) -> None:
        """All answers have been written."""
        if self.over:
            return
        if not self.headed:
            self._line.http.out.head(self, self._line.blocks.head())
        self._end(self._line.blocks.done(waits=bool(self.waiting)))

    def refuse(self, refused: RpcRefusal) -> None:
        self.fail(refused.code, refused.message, refused.trailers)

    def fail(self, code: str, message: str, trailers: tuple[tuple[str, str], ...] = ()) -> None:
        if self.over:
            return
        waits = bool(self.waiting)
        self._end(self._line.blocks.failed(code, message, trailers, headed=self.headed, waits=waits))

    def _end(self, block: bytes) -> None:
        self._line.http.out.end(self, block)
        self._line.flush_soon()
        self.settle()

    def settle(self) -> None:
        """The answer is decided: whatever else goes on for it stops; the task that decided is in its last step."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._arrival is not None:
            self._arrival.stop()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            if self._drop is not None:
                self._drop()
        if self._held:
            self._release()
        # These know us in turn, and hold what the client sent: nobody shall wait for the collector to free it.
        self.call = self._inbox = self._gathering = self._message = self._arrival = self._drop = None

    def gone(self) -> None:
        if not self.over:
            self.settle()
        self.drained()

    def drained(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def hurry(self) -> None:
        """The server is stopping: a stream ends between two of its messages."""
        if self._inbox is not None:
            self._inbox.end(NotReady("the server is stopping; open another stream"))
