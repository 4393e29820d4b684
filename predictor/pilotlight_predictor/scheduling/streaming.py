"""Streaming of decoupled models, which give any number of responses to a request, with back-pressure.

    instance's threads   DecoupledRequest.send, complete  →  ResponseBuffer    bounded, one per request
    event loop           ResponseBuffer  →  OpenRequests  →  QueuedRequest.part  →  ModelVersion.stream's `part`
    routes and RPCs      async for number, result, final in ResponseReader(…)

A slow reader pauses its ticket; then the buffer fills, and the sending thread blocks in `send`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Condition, get_ident
from time import perf_counter_ns
from typing import Final, Self

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.core.requests import InferRequest, InferResponse, Part
from pilotlight_predictor.errors import Cancelled
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.scheduling.executor_interface import Ticket
from pilotlight_predictor.scheduling.queue import QueuedRequest
from pilotlight_predictor.scheduling.response_delivery import Delivery

MAX_BUFFERED: Final = 64  # responses to one request that wait for the event loop before `send` blocks
MAX_UNREAD: Final = 16  # responses that wait for a reader before its request is paused

Deliver = Callable[["ResponseBuffer", Answer, bool], None]
StartStream = Callable[[InferRequest, Part], Ticket]  # ModelVersion.stream


class ResponseBuffer:
    """DecoupledRequest whose responses pass from the backend's thread to the event loop."""

    def __init__(self, item: QueuedRequest, loop: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
        self.item, self.request = item, item.request
        self._loop, self._deliver = loop, deliver
        self._loop_thread = get_ident()
        self._changed = Condition()
        self._waiting: deque[tuple[Answer, bool]] = deque()
        self._ended = self._posted = self._paused = False

    @property
    def cancelled(self) -> bool:
        return self.request.cancelled

    @property
    def full(self) -> bool:
        return not self._has_capacity()

    def send(self, answer: Answer, final: bool | None = None) -> None:
        """Send a response; blocks while the buffer is full. Responses after the end or a cancellation are dropped.

        The final one never blocks: a thread that fails many requests must not wait for one slow reader.
        """
        ends = isinstance(answer, Exception) if final is None else final
        with self._changed:
            self._changed.wait_for(lambda: ends or self._has_capacity())
            if not self._ended and (ends or not self.cancelled):
                self._put(answer, ends)

    def complete(self) -> None:
        with self._changed:
            if not self._ended:
                self._put({}, True)

    def cancel(self) -> None:
        """Cancel for a client that disconnected. On the event loop."""
        with self._changed:
            self.request.cancelled, self._paused = True, False
            self._changed.notify_all()
            self._post()

    def pause(self, paused: bool) -> None:
        """Hold responses back, or resume. On the event loop."""
        with self._changed:
            self._paused = paused and not self.cancelled
            self._post()

    def _has_capacity(self) -> bool:
        full = len(self._waiting) >= MAX_BUFFERED and not self._ended and not self.cancelled
        return not full or get_ident() == self._loop_thread

    def _put(self, answer: Answer, ends: bool) -> None:
        self._waiting.append((answer, ends))
        self._ended = ends
        self._post()

    def _post(self) -> None:
        if self._posted or self._paused or not self._waiting:
            return
        self._posted = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:  # the loop is closed
            self._ended = True

    def _drain(self) -> None:
        """Deliver what is buffered now; later responses wait for the loop's next iteration."""
        with self._changed:
            self._posted = False
            count = len(self._waiting)
        for _ in range(count):
            with self._changed:
                if self._paused:
                    break
                answer, final = self._waiting.popleft()
                self._changed.notify()
            self._deliver(self, answer, final)
        with self._changed:
            self._post()


class OpenRequests:
    """Started, incomplete requests of a decoupled version: delivers, counts, cancels. On the event loop."""

    def __init__(self, delivery: Delivery, stats: ModelStats, closed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._delivery, self._stats, self._closed = delivery, stats, closed
        self._open: dict[QueuedRequest, tuple[ResponseBuffer, int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, batch: list[QueuedRequest]) -> list[ResponseBuffer]:
        now, opened = perf_counter_ns(), [ResponseBuffer(item, self._loop, self._part) for item in batch]
        self._open.update({parts.item: (parts, now) for parts in opened})
        return opened

    def cancel(self, item: QueuedRequest) -> None:
        """Signal the model, and end the client's stream now."""
        opened = self._open.get(item)
        if opened is not None and not item.request.cancelled:
            opened[0].cancel()
            self._delivery.answer(item, Cancelled("the client disconnected before the last response"))

    def pause(self, item: QueuedRequest, paused: bool) -> None:
        opened = self._open.get(item)
        if opened is not None:
            opened[0].pause(paused)

    def _part(self, parts: ResponseBuffer, answer: Answer, final: bool) -> None:
        if not parts.cancelled:
            self._delivery.part(parts.item, answer, final)
        if final:
            (_, began), now, enqueued = self._open.pop(parts.item), perf_counter_ns(), parts.item.enqueued_ns
            if parts.cancelled or isinstance(answer, Exception):
                self._stats.record_failure(now - enqueued, "CANCELED" if parts.cancelled else "BACKEND")
            else:
                self._stats.record_success(began - enqueued, 0, now - began, 0, now - enqueued, parts.item.rows)
            if not self._open:
                self._delivery.end_batch()
            self._closed()


class FirstResponseTimeout:
    """Wrapper of a `part` callback that limits the time to the first response, and ends with the final one."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, seconds: float, expire: Callable[[], None]) -> None:
        if not self._ended:
            self._timer = asyncio.get_running_loop().call_later(seconds, expire)

    def __call__(self, result: InferResponse | Exception, final: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ended:
            self._ended = final
            self._part(result, final)


class ResponseReader:
    """Async iterator of (number of the request, response, final) in order of arrival. A slow reader pauses the model.

        async with ResponseReader(lambda request, part: version.stream(request, part, limits), request) as responses: …

    The constructor raises if a request is rejected. Leaving the context before the end cancels the requests.
    """

    def __init__(self, stream: StartStream, *requests: InferRequest) -> None:
        self._arrived: deque[tuple[int, InferResponse | Exception, bool]] = deque()
        self._available = asyncio.Event()
        self._open = len(requests)  # those whose final response was not read yet
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
        self._available.set()
        if len(self._arrived) >= MAX_UNREAD and not self._paused:
            self._paused = True
            for ticket in self._tickets:
                ticket.pause()

    def cancel(self) -> None:
        """Cancel the requests; their final responses can still be read."""
        tickets, self._tickets = self._tickets, []  # they refer back to this reader: break the cycle
        for ticket in tickets:
            ticket.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, InferResponse | Exception, bool]:
        if not self._open:
            raise StopAsyncIteration
        while not self._arrived:
            self._available.clear()
            await self._available.wait()
        number, result, final = self._arrived.popleft()
        self._open -= final
        if not self._open:
            self._tickets.clear()  # break the cycle to free the requests now, not at the next garbage collection
        elif self._paused and len(self._arrived) <= MAX_UNREAD // 2:
            self._paused = False
            for ticket in self._tickets:
                ticket.resume()
        return number, result, final

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
