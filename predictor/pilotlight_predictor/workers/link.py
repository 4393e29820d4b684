"""A worker's end of the link: asks the parent, and does what the parent asks of every worker."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.errors import PredictorError, Unavailable
from pilotlight_predictor.workers.frames import Answer, Frame, packed, read_frame

if TYPE_CHECKING:
    from pilotlight_predictor.dispatch import Dispatcher

NOT_PASSED_ON = frozenset({"content-encoding", "content-length", "transfer-encoding"})  # the body is unpacked by now


class Link:
    """`orders` are called for frames that carry no call; `lost` when the parent has gone."""

    def __init__(self, orders: Mapping[str, Callable[[Frame], None]], lost: Callable[[], None]) -> None:
        self._orders = orders
        self._lost = lost
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._dispatcher: Dispatcher | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, end: socket.socket) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=end)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    def serve(self, dispatcher: "Dispatcher") -> None:
        """From here on the parent's calls are answered, by routes that ask nobody else."""
        self._dispatcher = dispatcher
        self.tell("joined")

    def tell(self, kind: str, **told: Any) -> None:
        self._send(Frame({"kind": kind, **told}))

    async def ask(self, how: str, call: Call) -> Reply:
        """The merged answer of all workers to a call that this one was asked."""
        number = next(self._numbers)
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        headers = {name: value for name, value in call.headers.items() if name not in NOT_PASSED_ON}
        head = {"id": number, "how": how, "method": call.method, "path": call.path, "query": call.query}
        told = {"kind": "ask", **head, "headers": headers, "model": call.params.get("model", "")}
        self._send(Frame(told, bytes(call.body)))
        try:
            status, body, content_type, given = await answer
        finally:
            self._asked.pop(number, None)
        return Reply(status, [body], content_type, given or None)

    def _send(self, frame: Frame) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(packed(frame))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            if frame.kind == "do":
                self._do(frame)
            elif frame.kind == "answered":
                self._answered(frame)
            else:
                self._orders[frame.kind](frame)
        for waiting in [each for each in self._asked.values() if not each.done()]:
            waiting.set_exception(Unavailable("the parent of the workers has gone"))
        self._lost()

    def _answered(self, frame: Frame) -> None:
        waiting = self._asked.get(frame.head["id"])
        if waiting is not None and not waiting.done():
            waiting.set_result(Answer.of(frame))

    def _do(self, frame: Frame) -> None:
        """Who may call was decided by the worker that was asked."""
        head, dispatcher = frame.head, self._dispatcher

        def finish(reply: Reply) -> None:
            self._send(_answer(reply).frame("answer", head["id"]))

        call = Call(
            head["method"], head["path"], head["query"], head["headers"], frame.body, "", finish, perf_counter()
        )
        assert dispatcher is not None, "the parent asks only who has joined"
        try:
            match = dispatcher.match(call.method, call.path)
        except PredictorError as error:
            finish(dispatcher.refused(call, error, None))
        else:
            dispatcher.serve(call, match)


def _answer(reply: Reply) -> Answer:
    assert isinstance(reply.body, list), "a control call answers in one piece"
    return Answer(reply.status, b"".join(reply.body), reply.content_type, dict(reply.headers or {}))
