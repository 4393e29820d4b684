"""Executor of a front: requests go to the model process, answers come back. On the event loop.

Requests that come while the model process is being restarted wait in the front, for a bounded time and number.
"""

import asyncio
import socket
from functools import partial
from typing import Final

from pilotlight_predictor.core.requests import Outputs
from pilotlight_predictor.errors import BadRequest, Cancelled, QueueFull, Unavailable
from pilotlight_predictor.fronts import messages
from pilotlight_predictor.fronts.link import Link, say_hello
from pilotlight_predictor.fronts.messages import (
    Answer,
    Cancel,
    Failure,
    Message,
    Pause,
    Place,
    Release,
    Submit,
    Welcome,
)
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.scheduling.executor_interface import Executor
from pilotlight_predictor.scheduling.queue import QueuedRequest

HOLD_S: Final = 10.0  # that a request waits for a new model process
RESTARTING: Final = "the model process exited and is being restarted"
MAX_MEMORY: Final = 1 << 30


class Sent:
    """A request in the hands of the model process, or on its way there."""

    __slots__ = ("block", "item", "number")

    def __init__(self, number: int, item: QueuedRequest) -> None:
        self.number, self.item, self.block = number, item, -1


class ModelLink:
    """The front's connection to the model process, and a new one whenever that is restarted."""

    def __init__(self, hello: socket.socket, size: int, max_held: int) -> None:
        self._hello, self._size, self._max_held = hello, min(size, MAX_MEMORY), max_held
        self._link: Link | None = None
        self.ready = asyncio.Event()  # up for the first time
        self._welcomed = 0  # process that answers
        self._described = 0  # process whose models this front serves
        self._numbers = 0
        self._sent: dict[int, Sent] = {}
        self._by_item: dict[QueuedRequest, Sent] = {}
        self._held: dict[QueuedRequest, tuple[RemoteExecutor, asyncio.TimerHandle]] = {}

    @property
    def up(self) -> bool:
        return self._welcomed > 0 and self._welcomed == self._described

    async def connect(self) -> None:
        self._link = await say_hello(self._hello, self._size, self._receive, self._lost)

    def described_by(self, pid: int) -> None:
        """The models that this front serves are now those of this process."""
        self._described = pid
        self._send_held()

    def describes_another(self, pid: int) -> bool:
        return self._described not in (0, pid)

    def held_by(self, executor: "RemoteExecutor") -> int:
        return sum(holder is executor for holder, _ in self._held.values())

    def submit(self, executor: "RemoteExecutor", item: QueuedRequest) -> None:
        if not self.up:
            self._hold(executor, item)
            return
        assert self._link is not None
        self._numbers = number = self._numbers + 1
        self._sent[number] = self._by_item[item] = sent = Sent(number, item)
        item.gone = True  # the model process owns it
        try:
            request = item.request
            tensors = None if request.document is not None else request.inputs
            self._link.send_tensors(number, partial(self._submit_of, executor, sent), tensors)
        except Exception as error:
            self._forget(sent)
            raise BadRequest(f"model '{item.request.model}': the request cannot be sent: {error}") from error

    def _submit_of(self, executor: "RemoteExecutor", sent: Sent, places: list[Place], block: int) -> Submit:
        sent.block = block
        return messages.submit_of(sent.number, sent.item, executor.loaded, executor.version, places)

    def cancel(self, item: QueuedRequest) -> None:
        if item in self._held:
            self._drop_held(item, Cancelled("the client disconnected before the response"))
        elif (sent := self._by_item.get(item)) is not None and self._link is not None:
            waiting = next((each for each in self._link.unsent if each.number == sent.number), None)
            if waiting is None:
                self._link.send(Cancel(sent.number))
            else:
                self._link.unsent.remove(waiting)
                self._forget(sent)
                _answer(item, Cancelled("the client disconnected before the response"), True)

    def pause(self, item: QueuedRequest, paused: bool) -> None:
        if (sent := self._by_item.get(item)) is not None and self._link is not None:
            self._link.send(Pause(sent.number, paused))

    def _hold(self, executor: "RemoteExecutor", item: QueuedRequest) -> None:
        if len(self._held) >= self._max_held:
            raise QueueFull(f"Exceeds maximum queue size: {len(self._held)} requests wait; {RESTARTING}")
        expire = partial(self._drop_held, item, Unavailable(f"{RESTARTING}; retry"))
        self._held[item] = (executor, asyncio.get_running_loop().call_later(HOLD_S, expire))

    def _drop_held(self, item: QueuedRequest, error: Exception) -> None:
        _, timer = self._held.pop(item)
        timer.cancel()
        _answer(item, error, True)

    def _send_held(self) -> None:
        if self.up:
            self.ready.set()
        while self.up and self._held:
            item = next(iter(self._held))
            executor, timer = self._held.pop(item)
            timer.cancel()
            try:
                self.submit(executor, item)
            except Exception as error:
                _answer(item, error, True)

    def _forget(self, sent: Sent) -> None:
        del self._sent[sent.number], self._by_item[sent.item]

    def _receive(self, link: Link, message: Message) -> None:
        if isinstance(message, Answer):
            answer = messages.outputs_of(message, link.other)
            if message.block >= 0:  # the sender's again as soon as it is released
                for name, tensor in answer.items():
                    answer[name] = tensor._replace(array=tensor.array.copy())
                link.send(Release(message.block))
            self._finish(link, message.number, answer, message.final)
        elif isinstance(message, Failure):
            self._finish(link, message.number, messages.error_of(message), message.final)
        elif isinstance(message, Release):
            link.release(message.offset)
        elif isinstance(message, Welcome):
            self._welcomed = message.pid
            self._send_held()

    def _finish(self, link: Link, number: int, answer: Outputs | Exception, final: bool) -> None:
        sent = self._sent[number]
        if final:
            self._forget(sent)
        _answer(sent.item, answer, final)
        if final:
            link.release(sent.block)

    def _lost(self, _: Link) -> None:
        self._link, self._welcomed = None, 0
        sent = list(self._sent.values())
        self._sent.clear()
        self._by_item.clear()
        log("model_process.lost", f"{len(sent)} requests get 503", level="ERROR", requests=len(sent))
        for each in sent:
            _answer(each.item, Unavailable("the model process exited before it answered; retry"), True)
        self._connecting = asyncio.get_running_loop().create_task(self.connect())


def _answer(item: QueuedRequest, answer: Outputs | Exception, final: bool) -> None:
    try:
        if item.part is not None:
            item.part(answer, final)
        else:
            item.answer(answer)
    except Exception as error:
        log("answer.lost", f"a response of '{item.request.model}' could not be delivered", level="ERROR", error=error)


class RemoteExecutor(Executor):
    """Executor of one version in the model process. `loaded`: number of the load that the front knows."""

    def __init__(self, link: ModelLink, version: int, loaded: int) -> None:
        self._link, self.version, self.loaded = link, version, loaded
        self.described_problem = ""

    def submit(self, item: QueuedRequest) -> None:
        self._link.submit(self, item)

    def cancel(self, item: QueuedRequest) -> None:
        self._link.cancel(item)

    def pause(self, item: QueuedRequest, paused: bool) -> None:
        self._link.pause(item, paused)

    def hold(self) -> "RemoteExecutor":
        return self

    def release(self) -> None:
        """Do nothing: the model process closes its executors."""

    async def close(self) -> None:
        """Do nothing, as `release`."""

    @property
    def pending(self) -> int:
        return self._link.held_by(self)

    @property
    def problem(self) -> str:
        return self.described_problem if self._link.up else RESTARTING
