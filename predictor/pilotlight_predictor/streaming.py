"""Answers in parts: how a decoupled model, which gives any number of answers to a request, reaches who asked.

    instance's threads   Asked.send, Asked.complete   →  Parts       buffer, bounded, per request
    event loop           Parts → OpenRequests (scheduler.py counts)  →  Item.part  →  ServedVersion.stream's `part`
    routes and RPCs      async for result, final in Reading(…)       with back-pressure

A reader that is slow pauses its ticket; then the buffer fills, and the thread that sends waits in `send`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Condition, get_ident
from time import perf_counter_ns
from typing import Final, Protocol

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.delivery import Delivery
from pilotlight_predictor.errors import Cancelled
from pilotlight_predictor.executor import Ticket
from pilotlight_predictor.inference import InferRequest, InferResponse, Part
from pilotlight_predictor.stats import ModelStats
from pilotlight_predictor.waiting import Item

BUFFERED: Final = 64  # parts of one request that wait for the event loop before the model has to
AHEAD: Final = 16  # parts that wait for a reader before its request is paused

Deliver = Callable[["Parts", Answer, bool], None]


class Parts:
    """One request of a decoupled model: what backends know as `Asked`. Made on the event loop, which also delivers."""

    def __init__(self, item: Item, loop: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
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
        return not self._has_room()

    def send(self, answer: Answer, final: bool | None = None) -> None:
        """Waits while too many parts wait for the loop. What comes after the end, or after the client left, is lost.

        The last one never waits: who fails for many requests at once must not stand behind one that nobody reads.
        """
        ends = isinstance(answer, Exception) if final is None else final
        with self._changed:
            self._changed.wait_for(lambda: ends or self._has_room())
            if not self._ended and (ends or not self.cancelled):
                self._put(answer, ends)

    def complete(self) -> None:
        with self._changed:
            if not self._ended:
                self._put({}, True)

    def cancel(self) -> None:
        """The client has gone. On the event loop."""
        with self._changed:
            self.request.cancelled, self._paused = True, False
            self._changed.notify_all()
            self._post()

    def pause(self, paused: bool) -> None:
        """Whether parts are kept here for a while. On the event loop."""
        with self._changed:
            self._paused = paused and not self.cancelled
            self._post()

    def _has_room(self) -> bool:
        full = len(self._waiting) >= BUFFERED and not self._ended and not self.cancelled
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
        except RuntimeError:  # the loop has closed: nobody waits any more
            self._ended = True

    def _drain(self) -> None:
        """Hands over what is there; what comes meanwhile waits for the loop's next round."""
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
    """The requests of a version that are begun and not complete, on the event loop: delivers, counts, cancels."""

    def __init__(self, delivery: Delivery, stats: ModelStats, closed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._delivery, self._stats, self._closed = delivery, stats, closed
        self._open: dict[Item, tuple[Parts, int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, batch: list[Item]) -> list[Parts]:
        now, opened = perf_counter_ns(), [Parts(item, self._loop, self._part) for item in batch]
        self._open.update({parts.item: (parts, now) for parts in opened})
        return opened

    def cancel(self, item: Item) -> None:
        """Tells the model; who asked is told at once, and nothing after that."""
        found = self._open.get(item)
        if found is not None and not item.request.cancelled:
            found[0].cancel()
            self._delivery.answer(item, Cancelled("the client left before the last answer"))

    def pause(self, item: Item, paused: bool) -> None:
        found = self._open.get(item)
        if found is not None:
            found[0].pause(paused)

    def _part(self, parts: Parts, answer: Answer, final: bool) -> None:
        if not parts.cancelled:
            self._delivery.part(parts.item, answer, final)
        if final:
            _, began = self._open.pop(parts.item)
            self._record(parts, answer, began)
            if not self._open:
                self._delivery.end_batch()
            self._closed()

    def _record(self, parts: Parts, answer: Answer, began: int) -> None:
        now, item = perf_counter_ns(), parts.item
        if parts.cancelled or isinstance(answer, Exception):
            self._stats.record_failure(now - item.enqueued_ns, "CANCELED" if parts.cancelled else "BACKEND")
        else:
            waited = began - item.enqueued_ns
            self._stats.record_success(waited, 0, now - began, 0, now - item.enqueued_ns, item.rows)


class FirstWithin:
    """Between a request and its `part`: one end only, and DeadlineExceeded when the first part is late."""

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


class Streams(Protocol):
    """What a reader needs of a loaded version."""

    def __call__(self, request: InferRequest, part: Part) -> Ticket: ...


class Reading:
    """The answers to a request as they come, each with whether it is the last. A slow reader holds the model back.

        async with Reading(lambda asked, part: served.stream(asked, part, limits), request) as answers: …

    Leaving it before the end cancels the request.
    """

    def __init__(self, stream: Streams, request: InferRequest) -> None:
        self._arrived: deque[tuple[InferResponse | Exception, bool]] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._ticket: Ticket | None = None
        self._ticket = stream(request, self._part)

    def _part(self, result: InferResponse | Exception, final: bool) -> None:
        self._arrived.append((result, final))
        self._news.set()
        if len(self._arrived) == AHEAD and self._ticket is not None:
            self._ticket.pause()

    def cancel(self) -> None:
        """The rest is not wanted; there is still an end to be read."""
        if not self._ended and self._ticket is not None:
            self._ticket.cancel()

    def __aiter__(self) -> "Reading":
        return self

    async def __anext__(self) -> tuple[InferResponse | Exception, bool]:
        if self._ended:
            raise StopAsyncIteration
        while not self._arrived:
            self._news.clear()
            await self._news.wait()
        result, self._ended = self._arrived.popleft()
        if self._ended:
            self._ticket = None  # which leads back here: a circle would keep the request until the next collection
        elif len(self._arrived) == AHEAD // 2 and self._ticket is not None:
            self._ticket.resume()
        return result, self._ended

    async def __aenter__(self) -> "Reading":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
