"""The answers of a model to one or several requests of a client, in the order in which they come.

Between the routes of the OpenAI dialect (openai_run.py) and `ServedVersion.stream`. A reader that is slower than the
model pauses it; one that leaves cancels what is still open.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from pilotlight_predictor.calls import Call
from pilotlight_predictor.errors import Cancelled
from pilotlight_predictor.executor import Ticket
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.streaming import AHEAD, Streams


class Part(NamedTuple):
    """`number` says which request it answers; `final`, that this request has no more."""

    number: int
    response: InferResponse
    final: bool


class Answers:
    """Raises in the making what refuses a request at once, and from `next` what a model answers instead."""

    def __init__(self, stream: Streams, requests: Sequence[InferRequest]) -> None:
        self._arrived: deque[tuple[int, InferResponse | Exception, bool]] = deque()
        self._news = asyncio.Event()
        self._open = len(requests)
        self._paused = False
        self._tickets: list[Ticket] = []
        try:
            for number, request in enumerate(requests):
                self._tickets.append(stream(request, partial(self._part, number)))
        except Exception:
            self.cancel()
            raise

    def _part(self, number: int, result: InferResponse | Exception, final: bool) -> None:
        self._arrived.append((number, result, final))
        self._news.set()
        if len(self._arrived) >= AHEAD and not self._paused:
            self._paused = True
            for ticket in self._tickets:
                ticket.pause()

    async def next(self) -> Part | None:
        """None after the last part of the last request."""
        while not self._arrived:
            if not self._open:
                return None
            self._news.clear()
            await self._news.wait()
        number, result, final = self._arrived.popleft()
        if self._paused and len(self._arrived) <= AHEAD // 2:
            self._paused = False
            for ticket in self._tickets:
                ticket.resume()
        self._open -= final
        if isinstance(result, Exception):
            self.cancel()
            try:
                raise result
            finally:
                del result  # the error has this frame
        if not self._open:
            self._tickets.clear()  # they lead back here: a circle would keep the requests until the next collection
        return Part(number, result, final)

    def cancel(self) -> None:
        """What is still open ends; what is complete is not touched by it."""
        tickets, self._tickets = self._tickets, []  # they lead back here: see `next`
        for ticket in tickets:
            ticket.cancel()


@contextmanager
def abandonable(call: Call) -> Iterator[None]:
    """While a handler waits in here, a client that leaves ends it: what it began is the handler's to cancel."""
    task = asyncio.current_task()
    assert task is not None

    def leave() -> None:
        task.cancel()

    call.on_abandon = leave
    try:
        yield
    except asyncio.CancelledError:
        if not call.abandoned:
            raise
        task.uncancel()
        raise Cancelled("the client has gone") from None
    finally:
        if call.on_abandon is leave:
            call.on_abandon = None
