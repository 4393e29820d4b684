"""Responses of a model to the inferences of one OpenAI request, merged in order of arrival.

A client that reads slower than the model generates pauses the model; one that disconnects cancels it.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from pilotlight_predictor.calls import HttpRequest
from pilotlight_predictor.errors import Cancelled
from pilotlight_predictor.executor import Ticket
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.streaming import MAX_UNREAD, StartStream


class ResponsePart(NamedTuple):
    """Response to the inference `number`; `final` if it is the last one."""

    number: int
    response: InferResponse
    final: bool


class ResponseMerger:
    """Reader of several streams. The constructor raises if a request is rejected, `next` if a model fails."""

    def __init__(self, stream: StartStream, requests: Sequence[InferRequest]) -> None:
        self._received: deque[tuple[int, InferResponse | Exception, bool]] = deque()
        self._available = asyncio.Event()
        self._open = len(requests)
        self._paused = False
        self._tickets: list[Ticket] = []
        try:
            for number, infer_request in enumerate(requests):
                self._tickets.append(stream(infer_request, partial(self._part, number)))
        except Exception:
            self.cancel()
            raise

    def _part(self, number: int, result: InferResponse | Exception, final: bool) -> None:
        self._received.append((number, result, final))
        self._available.set()
        if len(self._received) >= MAX_UNREAD and not self._paused:
            self._paused = True
            for ticket in self._tickets:
                ticket.pause()

    async def next(self) -> ResponsePart | None:
        """Return the next part; None after the last one."""
        while not self._received:
            if not self._open:
                return None
            self._available.clear()
            await self._available.wait()
        number, result, final = self._received.popleft()
        if self._paused and len(self._received) <= MAX_UNREAD // 2:
            self._paused = False
            for ticket in self._tickets:
                ticket.resume()
        self._open -= final
        if isinstance(result, Exception):
            self.cancel()
            try:
                raise result
            finally:
                del result  # the traceback refers to this frame
        if not self._open:
            self._tickets.clear()  # break the reference cycle, which would hold the requests until garbage collection
        return ResponsePart(number, result, final)

    def cancel(self) -> None:
        """Cancel the inferences that are not complete."""
        tickets, self._tickets = self._tickets, []  # break the reference cycle: see `next`
        for ticket in tickets:
            ticket.cancel()


@contextmanager
def cancel_on_disconnect(request: HttpRequest) -> Iterator[None]:
    """Raise Cancelled in the block when the client disconnects; the caller cancels what it started."""
    task = asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        task.cancel()

    request.on_abandon = cancel
    try:
        yield
    except asyncio.CancelledError:
        if not request.abandoned:
            raise
        task.uncancel()
        raise Cancelled("the client has gone") from None
    finally:
        if request.on_abandon is cancel:
            request.on_abandon = None
