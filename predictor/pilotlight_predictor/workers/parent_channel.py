"""Messages between supervisor and workers: frames of a JSON head and a body, over a socketpair.

worker → supervisor   joined, ready, leaving, listens (confirms an order); ask (forward to all), answer (response to do)
supervisor → worker   listen (accept from these sockets), do (run a request), answered (response to ask), stop, hurry
model process → supervisor → fronts   models (the catalogue)
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Mapping
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight_predictor.errors import PredictorError, Unavailable
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse

if TYPE_CHECKING:
    from pilotlight_predictor.frontends.http.router import Dispatcher

_LENGTHS: Final = struct.Struct("!II")
NOT_PASSED_ON: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})  # of a body as sent


class Frame(NamedTuple):
    head: dict[str, Any]
    body: bytes = b""

    @property
    def kind(self) -> str:
        return str(self.head["kind"])


class WorkerResponse(NamedTuple):
    """Complete HTTP response of a worker, independent of the transport."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed

    def frame(self, kind: str, number: int) -> Frame:
        head = {"status": self.status, "content_type": self.content_type, "headers": self.headers}
        return Frame({"kind": kind, "id": number, **head}, self.body)

    @classmethod
    def of(cls, frame: Frame) -> "WorkerResponse":
        head = frame.head
        return cls(head["status"], frame.body, head["content_type"], head["headers"])


def encode_frame(frame: Frame) -> bytes:
    head = json.dumps(frame.head).encode()
    return _LENGTHS.pack(len(head), len(frame.body)) + head + frame.body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read one frame; None if the other side has closed."""
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        return Frame(json.loads(await reader.readexactly(head)), await reader.readexactly(body))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class ParentChannel:
    """Channel with a handler in `orders` per kind of control frame; `lost` is called when the supervisor has exited."""

    def __init__(self, orders: Mapping[str, Callable[[Frame], None]], lost: Callable[[], None]) -> None:
        self._orders = orders
        self._lost = lost
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[WorkerResponse]] = {}
        self._dispatcher: Dispatcher | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.before_answer: Callable[[], None] = lambda: None

    async def connect(self, end: socket.socket) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=end)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    def serve(self, dispatcher: "Dispatcher") -> None:
        """Serve requests of the supervisor, by routes that are not fanned out."""
        self._dispatcher = dispatcher
        self.send_message("joined")

    def send_message(self, kind: str, **head: Any) -> None:
        self.send(Frame({"kind": kind, **head}))

    async def request(self, how: str, request: HttpRequest) -> HttpResponse:
        """Forward a request to all workers and return the merged response."""
        number = next(self._numbers)
        self._pending[number] = future = asyncio.get_running_loop().create_future()
        headers = {name: value for name, value in request.headers.items() if name not in NOT_PASSED_ON}
        head = {"id": number, "how": how, "method": request.method, "path": request.path, "query": request.query}
        head = {"kind": "ask", **head, "headers": headers, "model": request.params.get("model", "")}
        self.send(Frame(head, bytes(request.body)))
        try:
            status, body, content_type, extra = await future
        finally:
            self._pending.pop(number, None)
        return HttpResponse(status, [body], content_type, extra or None)

    def send(self, frame: Frame) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode_frame(frame))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            if frame.kind == "do":
                self._do(frame)
            elif frame.kind == "answered":
                future = self._pending.get(frame.head["id"])
                if future is not None and not future.done():
                    future.set_result(WorkerResponse.of(frame))
            else:
                self._orders[frame.kind](frame)
        for future in [each for each in self._pending.values() if not each.done()]:
            future.set_exception(Unavailable("the parent of the workers exited"))
        self._lost()

    def _do(self, frame: Frame) -> None:
        """Run a request; it was authorized by the worker that received it."""
        head, dispatcher = frame.head, self._dispatcher

        def finish(response: HttpResponse) -> None:
            assert isinstance(response.body, list), "a control call answers in one piece"
            headers = dict(response.headers or {})
            self.before_answer()
            reply = WorkerResponse(response.status, b"".join(response.body), response.content_type, headers)
            self.send(reply.frame("answer", head["id"]))

        request = HttpRequest(
            head["method"], head["path"], head["query"], head["headers"], frame.body, "", finish, perf_counter()
        )
        assert dispatcher is not None, "the parent calls only workers that have joined"
        try:
            match = dispatcher.match(request.method, request.path)
        except PredictorError as error:
            finish(dispatcher.reject(request, error, None))
        else:
            dispatcher.serve(request, match)
