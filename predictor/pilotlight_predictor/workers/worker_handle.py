"""One worker in the supervisor: its process, the channel to it, its state, and the sockets that it accepts from.

A worker that is not ready releases a socket before a ready one gets it, and workers confirm each order: otherwise the
one that responds "not ready" for all could still accept a connection after another has reported the server ready.
"""

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

from pilotlight_predictor.workers.parent_channel import Frame, WorkerResponse, encode_frame, read_frame
from pilotlight_predictor.workers.supervisor_policy import assign_sockets, available_sockets
from pilotlight_predictor.workers.worker import VARIABLE

PATIENCE_S: Final = 3.0  # a load may hold the GIL, and so block the event loop
ANSWER_S: Final = 5.0  # for requests that a worker's event loop handles at once; loads have no timeout
SendOrder = Callable[[int, list[int]], None]
FrameHandler = Callable[["WorkerHandle", Frame], None]


class Order(NamedTuple):
    number: int
    sent_s: float
    sockets: list[int]


class SocketShare:
    """Sockets of one worker: those of the last confirmed order, and orders sent since."""

    def __init__(self, send: SendOrder) -> None:
        self._send = send
        self._numbers = count(1)
        self._done: list[int] = []
        self._open: deque[Order] = deque()
        self.last: list[int] | None = None  # sockets of the last order

    def assign(self, sockets: list[int], now_s: float) -> None:
        if sockets == self.last:
            return
        self.last = sockets
        order = Order(next(self._numbers), now_s, sockets)
        self._open.append(order)
        self._send(order.number, sockets)

    def confirm(self, number: int) -> None:
        """Record that the worker follows this order."""
        while self._open and self._open[0].number <= number:
            self._done = self._open.popleft().sockets

    def held(self, now_s: float) -> set[int]:
        """Return sockets that the worker may accept from; none if it does not confirm: a blocked loop cannot accept."""
        if self._open and now_s - self._open[0].sent_s >= PATIENCE_S:
            return set()
        return {*self._done, *(socket for order in self._open for socket in order.sockets)}


class ShareState(NamedTuple):
    share: SocketShare
    ready: bool


def share_states(workers: "Mapping[int, WorkerHandle]") -> dict[int, ShareState]:
    """Return the workers that take part; a leaving one keeps accepting until its exit unless another is ready."""
    present = {number: worker for number, worker in workers.items() if not worker.gone}
    replaced = any(worker.ready and not worker.leaving for worker in present.values())
    return {
        number: ShareState(worker.share, worker.ready and not worker.leaving)
        for number, worker in present.items()
        if replaced or not worker.leaving
    }


def distribute_sockets(sockets: int, workers: Mapping[int, ShareState], now_s: float, *, wait: bool = True) -> bool:
    """Send each worker its sockets; return whether some are withheld until another worker has released them."""
    ready = [number for number, worker in workers.items() if worker.ready]
    targets = assign_sockets(sockets, ready, workers)
    held = {number: worker.share.held(now_s) for number, worker in workers.items() if wait and not worker.ready}
    assigned = {
        number: available_sockets(targets[number], number, held, worker.share.last or () if worker.ready else ())
        for number, worker in workers.items()
    }
    for number, worker in workers.items():
        worker.share.assign(assigned[number], now_s)
    return assigned != targets


class WorkerHandle:
    """State of a worker.

    `joined`: its routes exist. `well`: it reports ready. `ready`: it takes connections. `leaving`: it is stopping on
    its own. `gone`: its channel is closed.
    """

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
    number: int, argv: Sequence[str], buckets: int, metrics: socket.socket | None, grpc: socket.socket | None,
    http: Sequence[socket.socket], hello: socket.socket | None = None, role: str = "worker",
) -> tuple[WorkerHandle, asyncio.StreamReader]:  # fmt: skip
    """Start a worker process, in its own session: signals of a terminal reach the supervisor only."""
    ours, theirs = socket.socketpair()
    descriptors = [buckets, *(one.fileno() if one is not None else -1 for one in (theirs, metrics, grpc, hello, *http))]
    value = ",".join(map(str, [role, number, *descriptors]))
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pilotlight_predictor", *argv,
            pass_fds=[one for one in descriptors if one >= 0],
            env={**os.environ, VARIABLE: value}, start_new_session=True,
        )  # fmt: skip
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    return WorkerHandle(number, process, writer), reader
