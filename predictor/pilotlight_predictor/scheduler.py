"""Runs one model version: a waiting line, the batcher's decisions, and instances that execute.

Everything here happens on the event loop except `Instance.execute`, which runs in the instance's own thread, or on
the loop itself once the model has proved to take only microseconds (see pace.py).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns, time_ns

from pilotlight_predictor.backends.base import Answer, Instance
from pilotlight_predictor.batcher import BatchPolicy, next_batch
from pilotlight_predictor.errors import BackendFailed, Cancelled, NotReady, PredictorError, QueueTimeout
from pilotlight_predictor.pace import Pace
from pilotlight_predictor.stats import ModelStats
from pilotlight_predictor.waiting import Item, WaitingLine
from pilotlight_predictor.worker import Worker

log = logging.getLogger("pilotlight.scheduler")


class Scheduler:
    """Owns its instances from construction to `close`."""

    def __init__(
        self,
        instances: Sequence[Instance],
        policy: BatchPolicy,
        line: WaitingLine,
        stats: ModelStats,
        *,
        preserve_ordering: bool = False,
        trial_ns: int = 0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._policy = policy
        self.line = line
        self.stats = stats
        self._workers = [Worker(instance, self._loop, self._finished) for instance in instances]
        self._idle = deque(self._workers)
        self._pace = Pace(all(instance.quick for instance in instances), trial_ns)
        self._order: deque[Item] | None = deque() if preserve_ordering else None
        self._early: dict[Item, Answer] = {}
        self._ticking = False
        self._timer: asyncio.TimerHandle | None = None
        self.executing = 0
        self._closed: asyncio.Future[None] | None = None

    def submit(self, item: Item) -> None:
        """Queues the item; raises QueueFull or BadRequest at once instead of letting it wait in vain."""
        if self._closed is not None:
            raise NotReady(f"'{item.request.model}' is unloading")
        self.line.push(item, perf_counter_ns())
        if self._order is not None:
            self._order.append(item)
        if not self._ticking and self._idle:
            self._ticking = True
            self._loop.call_soon(self._tick)

    def cancel(self, item: Item) -> None:
        """The client has gone: a waiting item frees its place, a running one finishes unheard."""
        if not item.gone:
            self.line.leave(item)
            self.stats.record_failure(perf_counter_ns() - item.enqueued_ns, "CANCELED")
            self._answer(item, Cancelled("the client left before the answer"))

    def _tick(self) -> None:
        self._ticking = False
        now = perf_counter_ns()
        self._reject_expired(now)
        while self._idle and self.line.size:
            take, wait_ns = next_batch(self.line, self._policy, now)
            if not take:
                self._wake_in(wait_ns)
                return
            inline = self._start(self.line.take(take))
            if inline and self.line.size:
                # Other models and connections get their turn between two batches of this one.
                self._ticking = True
                self._loop.call_soon(self._tick)
                return
        if self.line.size and (expiry := self.line.next_expiry()) is not None:
            self._wake_in(max(0, expiry - now))

    def _reject_expired(self, now: int) -> None:
        for item in self.line.expire(now):
            self.stats.record_failure(now - item.enqueued_ns, "REJECTED")
            self._answer(item, QueueTimeout("Request timeout expired while it waited in the queue"))

    def _wake_in(self, wait_ns: int | None) -> None:
        if wait_ns is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_ns / 1e9, self._tick)

    def _start(self, batch: list[Item]) -> bool:
        """Runs the batch on the loop if the model is quick enough for that, else hands it to an idle worker."""
        for item in batch:
            item.gone = True  # from here on it is no queue's business
        self.executing += len(batch)
        worker = self._idle.popleft()
        if self._pace.inline:
            started = perf_counter_ns()
            answers = worker.execute(batch)
            self._finished(worker, batch, answers, started, perf_counter_ns())
            return True
        worker.start(batch)
        return False

    def _finished(
        self, worker: Worker, batch: list[Item], answers: Sequence[Answer], started_ns: int, ended_ns: int
    ) -> None:
        self._idle.append(worker)
        self.executing -= len(batch)
        self._pace.observe(ended_ns - started_ns)
        self._record(batch, answers, started_ns, ended_ns)
        for item, answer in zip(batch, answers, strict=True):
            self._answer(item, answer)
        if self.line.size and not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)
        elif self._closed is not None:
            self._finish_close()

    def _record(self, batch: list[Item], answers: Sequence[Answer], started_ns: int, ended_ns: int) -> None:
        failed = [item for item, answer in zip(batch, answers, strict=True) if isinstance(answer, Exception)]
        for item in failed:
            self.stats.record_failure(ended_ns - item.enqueued_ns, "BACKEND")
        good = len(batch) - len(failed)
        if good:
            rows = sum(item.rows for item in batch)
            queued = sum(started_ns - item.enqueued_ns for item in batch)
            self.stats.record_execution(good, rows, queued, 0, ended_ns - started_ns, 0, time_ns() // 1_000_000)

    def _answer(self, item: Item, answer: Answer) -> None:
        if self._order is None:
            _deliver(item, answer)
            return
        self._early[item] = answer
        while self._order and self._order[0] in self._early:
            first = self._order.popleft()
            _deliver(first, self._early.pop(first))

    async def close(self) -> None:
        """New items are refused from now on; waiting and running ones finish, then the instances are freed."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._finish_close()
        await self._closed

    def _finish_close(self) -> None:
        if self._closed is None or self._closed.done() or self.line.size or self.executing:
            return
        for worker in self._workers:
            worker.stop()
        self._closed.set_result(None)

    @property
    def pending(self) -> int:
        """Requests that wait for an instance."""
        return self.line.size

    @property
    def alive(self) -> bool:
        """False once a worker's thread has died: the model can answer no more."""
        return all(worker.alive for worker in self._workers)


def _deliver(item: Item, answer: Answer) -> None:
    if isinstance(answer, BackendFailed) or (isinstance(answer, Exception) and not isinstance(answer, PredictorError)):
        log.error("model '%s' failed", item.request.model, exc_info=answer.__cause__ or answer)
        answer = BackendFailed(f"model '{item.request.model}' failed; the server's log has the reason")
    item.done(answer)
