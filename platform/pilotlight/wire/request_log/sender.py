"""Queue and sender of a request log: bounded, never blocking who logs; a thread delivers batches.

What does not fit is dropped and counted. A batch that its sink does not accept is retried with backoff, then counted as
failed: a log that is down costs its events, never memory or latency.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pilotlight.wire.request_log.events import LogEvent
from pilotlight.wire.request_log.settings import LogSettings
from pilotlight.wire.request_log.sinks import Sink, Undelivered, open_sink

MAX_EVENTS: Final = 4096  # waiting
MAX_QUEUED_BYTES: Final = 32 << 20
OVERHEAD: Final = 2048  # bytes that an event counts for beside its body: its strings and headers
BACKOFF_S: Final = (0.2, 1.0, 3.0)  # between attempts of a batch
REPORT_EVERY_S: Final = 60.0


@dataclass(slots=True)
class LogCounts:
    sent: int = 0
    dropped: int = 0  # the queue was full
    failed: int = 0  # the sink did not accept them


@dataclass(slots=True)
class _Queue:
    events: deque[LogEvent] = field(default_factory=deque)
    size: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    closing: float = 0.0  # monotonic time at which the sender stops; 0: not closing


class RequestLog:
    """Request log of one service in one process. `on_error` gets a sentence at most once a minute, from a thread."""

    def __init__(
        self,
        settings: LogSettings,
        on_error: Callable[[str], None],
        rng: Callable[[], float] = random.random,
        sink: Sink | None = None,
    ) -> None:
        self.settings = settings
        self.counts = LogCounts()
        self._on_error, self._rng = on_error, rng
        self._sink = sink or open_sink(settings)
        self._queue = _Queue()
        self._thread: threading.Thread | None = None
        self._reported = 0.0

    def samples(self) -> bool:
        """Whether to log the next request: decided once, so that its response belongs to it."""
        return self.settings.sample >= 1 or self._rng() < self.settings.sample

    def offer(self, event: LogEvent) -> None:
        """Queue an event, or drop and count it. Never blocks beyond the queue's lock, and never raises."""
        queue, size = self._queue, len(event.body) + OVERHEAD
        with queue.changed:
            full = len(queue.events) >= MAX_EVENTS or queue.size + size > MAX_QUEUED_BYTES
            if full or queue.closing:
                self.counts.dropped += 1
                return
            queue.events.append(event)
            queue.size += size
            if len(queue.events) in (1, self.settings.batch_size):  # what the thread waits for
                queue.changed.notify()
        if self._thread is None:  # the first event: services without requests cost no thread
            self._thread = threading.Thread(target=self._run, name=f"log-{self.settings.service}", daemon=True)
            self._thread.start()

    def close(self, seconds: float, *, wait: bool = True) -> None:
        """Deliver what is queued, for at most `seconds`, and `wait` for it; the rest counts as dropped."""
        with self._queue.changed:
            self._queue.closing = time.monotonic() + seconds
            self._queue.changed.notify()
        if not wait:
            return
        if self._thread is not None:
            self._thread.join(seconds)
        with self._queue.changed:
            self.counts.dropped += len(self._queue.events)
            self._queue.events.clear()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._deliver(batch)
        self._sink.close()

    def _next_batch(self) -> list[LogEvent]:
        """Wait for events, then up to `batch_s` for a full batch; empty: the log is closed."""
        queue, settings = self._queue, self.settings
        with queue.changed:
            queue.changed.wait_for(lambda: queue.events or queue.closing)
            queue.changed.wait_for(
                lambda: len(queue.events) >= settings.batch_size or queue.closing, timeout=settings.batch_s
            )
            if queue.closing and time.monotonic() > queue.closing:
                return []
            batch = [queue.events.popleft() for _ in range(min(settings.batch_size, len(queue.events)))]
            queue.size -= sum(len(event.body) + OVERHEAD for event in batch)
            return batch

    def _deliver(self, batch: list[LogEvent]) -> None:
        pauses = iter(BACKOFF_S)
        while batch:
            try:
                self._sink.send(batch)
                self.counts.sent += len(batch)
                return
            except Undelivered as error:
                self.counts.sent += error.sent
                self.counts.failed += error.refused
                batch, reason = batch[error.sent + error.refused :], str(error)
                if error.sent or error.refused:
                    pauses = iter(BACKOFF_S)
                if error.refused:
                    self._report(reason)
                    continue
            except Exception as error:  # a defect must not end the thread
                pauses, reason = iter(()), f"{type(error).__name__}: {error}"
            pause_s = next(pauses, None)
            if pause_s is None:
                self.counts.failed += len(batch)
                self._report(reason)
                return
            with self._queue.changed:
                self._queue.changed.wait_for(lambda: self._queue.closing, timeout=pause_s)

    def _report(self, reason: str) -> None:
        now = time.monotonic()
        if not self._reported or now - self._reported > REPORT_EVERY_S:
            self._reported = now
            counts = self.counts
            with suppress(Exception):
                self._on_error(
                    f"request log of {self.settings.service}: {reason}; {counts.failed} events were not delivered and"
                    f" {counts.dropped} dropped so far; check the url of its logger"
                )
