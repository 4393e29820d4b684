"""Runs one model version: a waiting line, the batcher's decisions, and instances that execute.

Everything here happens on the event loop except `Instance.execute`, which runs in the instance's own thread, or on
the loop itself once the model has proved to take only microseconds (see pace.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns, thread_time_ns, time_ns

from msgspec.structs import replace

from pilotlight_predictor.backends.base import Answer, AnyInstance, is_decoupled
from pilotlight_predictor.batch import Shares
from pilotlight_predictor.batcher import BatchPolicy, next_batch
from pilotlight_predictor.delivery import Delivery
from pilotlight_predictor.errors import Cancelled, NotReady, PredictorError, QueueTimeout
from pilotlight_predictor.executor import Now
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.logs import log
from pilotlight_predictor.pace import Pace
from pilotlight_predictor.stats import FailureReason, ModelStats
from pilotlight_predictor.streaming import OpenRequests
from pilotlight_predictor.waiting import Item, WaitingLine
from pilotlight_predictor.worker import Worker


class Scheduler:
    """Owns its instances from construction to `close`."""

    def __init__(
        self,
        instances: Sequence[AnyInstance],
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
        self._decoupled = any(map(is_decoupled, instances))
        self._ordered = preserve_ordering and not self._decoupled
        self._delivery = Delivery(self._ordered)
        self._answer = self._delivery.answer if self._ordered else self._delivery.deliver
        self._at_once = not (self._ordered or self._decoupled or policy.delay_ns or line.priorities)
        self._open = OpenRequests(self._delivery, stats, self._finish_close)
        self._ticking = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self.executing = 0
        self._refusal = ""  # why nothing more is taken
        self._resting = False
        self.asked: Callable[[], None] = nobody_listens  # told of what comes while it rests
        self._holders = 0
        self._closed: asyncio.Future[None] | None = None
        self._stopping = 0

    def submit(self, item: Item) -> None:
        """Queues the item; raises QueueFull or BadRequest at once instead of letting it wait in vain."""
        if self._refusal:
            raise NotReady(f"'{item.request.model}' {self._refusal}")
        self.line.push(item, perf_counter_ns())
        if self._ordered:
            self._delivery.expect(item)
        if self._idle:
            self._tick_soon()
            return
        if item.expires_ns:
            self._wake_at(item.expires_ns, item.enqueued_ns)
        if self._resting:
            self.asked()

    def now(self) -> Now | None:
        free = self._at_once and self._pace.inline and self._idle and not self.line.size and not self._refusal
        return self._run_now if free else None

    def _run_now(self, request: InferRequest, rows: int) -> Answer:
        doubt = self._pace.in_doubt
        started, before = perf_counter_ns(), thread_time_ns() if doubt else 0
        answer = self._idle[0].answers([request])[0]
        ended = perf_counter_ns()
        used = thread_time_ns() - before if doubt else ended - started
        if isinstance(answer, Exception):
            return self._failed_now(request, rows, answer, (started, ended, used))
        self._pace.observe(used)
        self.stats.record_execution(1, rows, 0, 0, ended - started, 0, time_ns() // 1_000_000)
        return answer

    def _failed_now(self, request: InferRequest, rows: int, error: Exception, times: tuple[int, int, int]) -> Answer:
        """As any batch that failed: told to the log, and perhaps the end of an instance."""
        told: list[Answer] = []
        item = Item(request, told.append, rows, enqueued_ns=times[0], gone=True)
        self.executing += 1
        self._finished(self._idle.popleft(), [item], [error], *times)
        return told[0]

    def cancel(self, item: Item) -> None:
        """The client has gone: a waiting item frees its place, a running one finishes unheard and may stop early."""
        if not item.gone:
            self.line.leave(item)
            self._drop(item, perf_counter_ns(), "CANCELED", Cancelled("the client left before the answer"))
            self._finish_close()
        elif self._decoupled:
            self._open.cancel(item)
        else:
            item.request.cancelled = True

    def pause(self, item: Item, paused: bool) -> None:
        self._open.pause(item, paused)

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        now = perf_counter_ns()
        self._reject_expired(now)
        wake_ns = self.line.next_expiry() or 0
        while self._idle and self.line.size:
            take, wait_ns = next_batch(self.line, self._policy, now)
            if not take:
                wake_ns = min(now + (wait_ns or 0), wake_ns or now + (wait_ns or 0))
                break
            inline = self._start(self.line.take(take))
            if inline and self.line.size:
                # Other models and connections get their turn between two batches of this one.
                self._tick_soon()
                return
        if self.line.size and wake_ns:
            self._timer_ns = 0
            self._wake_at(wake_ns, now)

    def _reject_expired(self, now: int) -> None:
        expired = self.line.expire(now)
        for item in expired:
            self._drop(item, now, "REJECTED", QueueTimeout("Request timeout expired while it waited in the queue"))
        if expired:
            self._finish_close()

    def _drop(self, item: Item, now: int, reason: FailureReason, error: PredictorError) -> None:
        """Answers an item that never reached an instance."""
        self.stats.record_failure(now - item.enqueued_ns, reason)
        self._answer(item, error)

    def _wake_at(self, due_ns: int, now: int) -> None:
        """Looks again then, unless an earlier look is due already."""
        if self._timer is not None:
            if 0 < self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self._loop.call_later(max(0, due_ns - now) / 1e9, self._alarm)

    def _alarm(self) -> None:
        self._timer, self._timer_ns = None, 0
        self._tick()

    def _start(self, batch: list[Item]) -> bool:
        """Runs the batch on the loop if the model is quick enough for that, else hands it to an idle worker."""
        for item in batch:
            item.gone = True  # from here on it is no queue's business
        self.executing += len(batch)
        worker = self._idle.popleft()
        if self._decoupled:
            worker.start(batch, self._open.open(batch))
            return False
        if self._pace.inline:
            doubt = self._pace.in_doubt
            started, before = perf_counter_ns(), thread_time_ns() if doubt else 0
            answers = worker.execute(batch)
            ended = perf_counter_ns()
            self._finished(
                worker, batch, answers, started, ended, thread_time_ns() - before if doubt else ended - started
            )
            return True
        worker.start(batch)
        return False

    def _finished(
        self, worker: Worker, batch: list[Item], answers: Sequence[Answer], started_ns: int, ended_ns: int, used_ns: int
    ) -> None:
        self.executing -= len(batch)
        if worker.death:
            self._bury(worker)
        else:
            self._idle.append(worker)
        if self.line.size and not self._pace.inline:
            self._tick()  # the instance computes the next batch while the answers to this one are written
        if self._decoupled:
            rows = sum(item.rows for item in batch)
            self.stats.record_batch(rows, 0, ended_ns - started_ns, 0, time_ns() // 1_000_000)
        else:
            self._pace.observe(used_ns)
            self._record(batch, answers, started_ns, ended_ns)
            self._delivery.answer_batch(batch, answers)
        if self.line.size and self._idle:
            self._tick_soon()
        elif self._closed is not None:
            self._finish_close()

    def _bury(self, worker: Worker) -> None:
        """A dead instance gets no more work; with the last one gone, nobody waits in vain."""
        log("backend.died", f"an instance died: {worker.death}", level="ERROR", model=self.stats.name)
        if self._living:
            return
        self._refusal = f"is not ready: {worker.death}; load it again or restart the server"
        self.turn_away(NotReady(f"'{self.stats.name}' {self._refusal}"))

    def _record(self, batch: list[Item], answers: Sequence[Answer], started_ns: int, ended_ns: int) -> None:
        took, now_ms = ended_ns - started_ns, time_ns() // 1_000_000
        rows, queued = 0, started_ns * len(batch)
        for item in batch:
            rows += item.rows
            queued -= item.enqueued_ns
            if item.request.trace is not None:
                item.request.trace.ran(item.enqueued_ns, started_ns, ended_ns)
        failed = 0 if isinstance(answers, Shares) else sum(isinstance(answer, Exception) for answer in answers)
        if not failed:
            self.stats.record_execution(len(batch), rows, queued, 0, took, 0, now_ms)
            return
        for item, answer in zip(batch, answers, strict=True):
            total = ended_ns - item.enqueued_ns
            if isinstance(answer, Exception):
                self.stats.record_failure(total, "BACKEND")
            else:
                self.stats.record_success(started_ns - item.enqueued_ns, 0, took, 0, total, item.rows)
        if failed < len(batch):
            self.stats.record_batch(rows, 0, took, 0, now_ms)

    @property
    def busy(self) -> bool:
        """Whether anything waits, runs, or will come for sure."""
        return bool(self.line.size or self.executing or self._holders or self._open)

    def rest(self) -> bool:
        """Takes all instances out of service if none has anything to do; what comes then waits in line, as if all were
        busy, until `resume`."""
        if self.busy or self._refusal or self._closed is not None or len(self._idle) < len(self._living):
            return False
        self._idle.clear()
        self._resting = True
        return True

    def resume(self) -> None:
        self._resting = False
        self._idle.extend(self._living)
        self._tick_soon()

    def turn_away(self, error: PredictorError) -> None:
        """All that waits is told why it waits in vain."""
        now = perf_counter_ns()
        for item in self.line.clear():
            item.gone = True
            self._drop(item, now, "REJECTED", error)
        self._finish_close()

    def hold(self) -> "Scheduler":
        """Keeps it from closing until `release`: for an ensemble's request that will come here at a later step."""
        self._holders += 1
        return self

    def release(self) -> None:
        self._holders -= 1
        self._finish_close()

    async def close(self) -> None:
        """What waits, runs or holds on is finished, without waiting for batches to fill; then instances are freed."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._policy = replace(self._policy, delay_ns=0)
            self._tick_soon()
            self._finish_close()
        await asyncio.shield(self._closed)

    def _finish_close(self) -> None:
        if self._closed is None or self._stopping or self.line.size or self.executing or self._holders or self._open:
            return
        self._refusal = "is unloaded"
        self._stopping = len(self._workers)
        for worker in self._workers:
            worker.stop(self._worker_stopped)

    def _worker_stopped(self) -> None:
        self._stopping -= 1
        if self._stopping == 0 and self._closed is not None and not self._closed.done():
            self._stopping = -1
            self._closed.set_result(None)

    @property
    def _living(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.death]

    @property
    def pending(self) -> int:
        """Requests that wait for an instance."""
        return self.line.size

    @property
    def problem(self) -> str:
        """Why the model cannot be relied upon; empty while every instance lives."""
        return next((worker.death for worker in self._workers if worker.death), "")

    @property
    def alive(self) -> bool:
        return not self.problem


def nobody_listens() -> None:
    """Until somebody may be asked to end its rest."""
