"""One worker as its parent sees it: a process, the link to it, and what it has said of itself."""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final

from pilotlight_predictor.workers.frames import Answer, Frame, packed, read_frame
from pilotlight_predictor.workers.seat import VARIABLE
from pilotlight_predictor.workers.sharing import Share

ANSWER_S: Final = 5.0  # for what a worker's event loop answers at once; a load takes the time it takes

Hear = Callable[["Member", Frame], None]


class Member:
    """`joined`: its routes are there. `well`: it says that it is ready. `ready`: it takes connections. `leaving`: it
    ends by its own. `gone`: its link has ended."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.process = process
        self.joined = self.well = self.ready = self.leaving = self.gone = False
        self.scrape = ""  # its last metrics, which outlive it
        self.share = Share(lambda order, sockets: self.tell("listen", order=order, sockets=sockets))
        self._writer = writer
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Answer | None]] = {}

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    def tell(self, kind: str, **told: Any) -> None:
        self.send(Frame({"kind": kind, **told}))

    def send(self, frame: Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(packed(frame))

    def ask(self, frame: Frame) -> Awaitable[Answer | None]:
        """Its answer to the call; None when it died over it."""
        number = next(self._numbers)
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        if self._writer.is_closing():  # it has gone since it was chosen
            answer.set_result(None)
            return answer
        self._asked[number] = answer
        self.send(Frame({**frame.head, "kind": "do", "id": number}, frame.body))
        return answer

    async def listen(self, reader: asyncio.StreamReader, hear: Hear) -> None:
        """Until the link ends."""
        while (frame := await read_frame(reader)) is not None:
            if frame.kind == "answer":
                waiting = self._asked.pop(frame.head["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(Answer.of(frame))
            else:
                hear(self, frame)
        self.joined = self.well = self.ready = False
        self.gone = True
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_result(None)
        self._writer.close()


async def ask_all(members: Sequence[Member], call: Frame) -> dict[int, Answer]:
    """The answers that come in time, by the worker's number."""
    asked = {member.number: asyncio.ensure_future(member.ask(call)) for member in members}
    if asked:
        await asyncio.wait(asked.values(), timeout=ANSWER_S)
    return {number: answer for number, one in asked.items() if one.done() and (answer := one.result()) is not None}


async def start(
    number: int, argv: Sequence[str], metrics: socket.socket | None, http: Sequence[socket.socket]
) -> tuple[Member, asyncio.StreamReader]:
    """A session of its own: what a terminal sends to all processes in it reaches the parent alone."""
    ours, theirs = socket.socketpair()
    descriptors = [theirs.fileno(), metrics.fileno() if metrics is not None else -1, *(one.fileno() for one in http)]
    seat = ",".join(map(str, [number, *descriptors]))
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pilotlight_predictor", *argv,
            pass_fds=[one for one in descriptors if one >= 0],
            env={**os.environ, VARIABLE: seat}, start_new_session=True,
        )  # fmt: skip
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    return Member(number, process, writer), reader
