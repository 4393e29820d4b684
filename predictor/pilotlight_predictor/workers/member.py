"""One worker in the supervisor: its process, the channel to it, and its reported state."""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final

from pilotlight_predictor.workers.frames import Frame, WorkerResponse, encode_frame, read_frame
from pilotlight_predictor.workers.seat import VARIABLE
from pilotlight_predictor.workers.sharing import SocketShare

ANSWER_S: Final = 5.0  # for requests that a worker's event loop handles at once; loads have no timeout

FrameHandler = Callable[["WorkerHandle", Frame], None]


class WorkerHandle:
    """State of a worker. `joined`: its routes exist. `well`: it reports ready. `ready`: it takes connections.
    `leaving`: it is stopping on its own. `gone`: its channel is closed."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.process = process
        self.joined = self.well = self.ready = self.leaving = self.gone = False
        self.scrape = ""  # its last metrics, used after it has exited
        self.share = SocketShare(lambda order, sockets: self.send_message("listen", order=order, sockets=sockets))
        self._writer = writer
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[WorkerResponse | None]] = {}

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    def send_message(self, kind: str, **fields: Any) -> None:
        self.send(Frame({"kind": kind, **fields}))

    def send(self, frame: Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode_frame(frame))

    def request(self, frame: Frame) -> Awaitable[WorkerResponse | None]:
        """Send a request; its response is None if the worker exits before."""
        number = next(self._numbers)
        future: asyncio.Future[WorkerResponse | None] = asyncio.get_running_loop().create_future()
        if self._writer.is_closing():  # it has exited since it was selected
            future.set_result(None)
            return future
        self._pending[number] = future
        self.send(Frame({**frame.head, "kind": "do", "id": number}, frame.body))
        return future

    async def listen(self, reader: asyncio.StreamReader, handle: FrameHandler) -> None:
        """Handle frames until the channel closes."""
        while (frame := await read_frame(reader)) is not None:
            if frame.kind == "answer":
                future = self._pending.pop(frame.head["id"], None)
                if future is not None and not future.done():
                    future.set_result(WorkerResponse.of(frame))
            else:
                handle(self, frame)
        self.joined = self.well = self.ready = False
        self.gone = True
        for future in self._pending.values():
            if not future.done():
                future.set_result(None)
        self._writer.close()


async def request_all(members: Sequence[WorkerHandle], request: Frame) -> dict[int, WorkerResponse]:
    """Return the responses that arrive within ANSWER_S, by worker number."""
    pending = {member.number: asyncio.ensure_future(member.request(request)) for member in members}
    if pending:
        await asyncio.wait(pending.values(), timeout=ANSWER_S)
    return {
        number: response for number, one in pending.items() if one.done() and (response := one.result()) is not None
    }


async def start(
    number: int, argv: Sequence[str], metrics: socket.socket | None, http: Sequence[socket.socket]
) -> tuple[WorkerHandle, asyncio.StreamReader]:
    """Start a worker process, in its own session: signals of a terminal reach the supervisor only."""
    ours, theirs = socket.socketpair()
    descriptors = [theirs.fileno(), metrics.fileno() if metrics is not None else -1, *(one.fileno() for one in http)]
    value = ",".join(map(str, [number, *descriptors]))
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pilotlight_predictor", *argv,
            pass_fds=[one for one in descriptors if one >= 0],
            env={**os.environ, VARIABLE: value}, start_new_session=True,
        )  # fmt: skip
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    return WorkerHandle(number, process, writer), reader
