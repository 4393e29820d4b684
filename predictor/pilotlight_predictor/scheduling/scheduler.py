"""Scheduler of one model version: a request queue, the batcher's decisions, and instances that execute batches.

Everything runs on the event loop except `Instance.execute`, which runs in the instance's own thread, or on the loop
while the model is fast enough for that (InlineExecutionPolicy).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter_ns, thread_time_ns, time_ns
from typing import Final

from msgspec.structs import replace

from pilotlight_predictor.backends.base import Answer, AnyInstance, is_decoupled
from pilotlight_predictor.core.batch import SplitOutputs
from pilotlight_predictor.core.byte_budget import ByteBudget
from pilotlight_predictor.core.requests import InferRequest, size_of
from pilotlight_predictor.errors import BackendFailed, Cancelled, NotReady, PredictorError, QueueTimeout
from pilotlight_predictor.metrics.model_stats import FailureReason, ModelStats
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.scheduling.batching import BatchPolicy, affordable, next_batch
from pilotlight_predictor.scheduling.executor_interface import Executor, InlineCall
from pilotlight_predictor.scheduling.instance_thread import InlineExecutionPolicy, InstanceThread
from pilotlight_predictor.scheduling.queue import QueuedRequest, RequestQueue
from pilotlight_predictor.scheduling.response_delivery import Delivery
from pilotlight_predictor.scheduling.streaming import OpenRequests

UNCOUNTED: Final = 1 << 16  # bytes of outputs per row up to which a batch is not counted while the budget is unused


class Scheduler(Executor):
    """Scheduler over instances that it owns from construction to `close`."""

    def __init__(
        self,
        instances: Sequence[AnyInstance],
        policy: BatchPolicy,
        queue: RequestQueue,
        stats: ModelStats,
        *,
        preserve_ordering: bool = False,
        trial_ns: int = 0,
        budget: ByteBudget | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._budget = budget or ByteBudget(1 << 62)
        self._row_size = 0  # bytes of the outputs of a row, at most, of late
        self._policy = policy
        self.queue = queue
        self.stats = stats
        self._threads = [InstanceThread(instance, self._loop, self._finished) for instance in instances]
        self._idle = deque(self._threads)
        self._inline_policy = InlineExecutionPolicy(all(instance.quick for instance in instances), trial_ns)
        self._decoupled = any(map(is_decoupled, instances))
        self._ordered = preserve_ordering and not self._decoupled
        self._delivery = Delivery(self._ordered)
        self._answer = self._delivery.answer if self._ordered else self._delivery.deliver
        self._inline_allowed = not (self._ordered or self._decoupled or policy.delay_ns or queue.priorities)
        self._open = OpenRequests(self._delivery, stats, self._finish_close)
        self._ticking = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self.executing = 0
        self._reject_reason = ""  # why new requests are rejected; empty: they are accepted
        self._suspended = False
        self.on_request: Callable[[], None] = ignore  # called for each request that arrives while suspended
        self._holders = 0
        self._closed: asyncio.Future[None] | None = None
        self._stopping = 0

    def submit(self, item: QueuedRequest) -> None:
        """Queue a request. Raises NotReady, QueueFull or BadRequest."""
        if self._reject_reason:
            raise NotReady(f"'{item.request.model}' {self._reject_reason}")
        self.queue.push(item, perf_counter_ns())
        if self._ordered:
            self._delivery.expect(item)
        if self._idle:
            self._tick_soon()
            return
        if item.expires_ns:
            self._wake_at(item.expires_ns, item.enqueued_ns)
        if self._suspended:
            self.on_request()

    def inline_call(self) -> InlineCall | None:
        allowed = self._inline_allowed and self._inline_policy.inline and not self._reject_reason
        return self._run_inline if allowed and self._idle and not self.queue.size else None

    def _run_inline(self, request: InferRequest, rows: int) -> Answer:
        measure_cpu = self._inline_policy.on_probation
        started, before = perf_counter_ns(), thread_time_ns() if measure_cpu else 0
        answer = self._idle[0].answers([request])[0]
        ended = perf_counter_ns()
        used = thread_time_ns() - before if measure_cpu else ended - started
        if isinstance(answer, Exception):  # as of any batch: it is logged, and may remove the instance
            answers: list[Answer] = []
            item = QueuedRequest(request, answers.append, rows, enqueued_ns=started, gone=True)
            self.executing += 1
            self._finished(self._idle.popleft(), [item], [answer], started, ended, used)
            return answers[0]
        self._inline_policy.observe(used)
        self.stats.record_execution(1, rows, 0, 0, ended - started, 0, time_ns() // 1_000_000)
        return answer

    def cancel(self, item: QueuedRequest) -> None:
        """Cancel for a client that disconnected: dequeue the request, or flag it so that the model may stop early."""
        if not item.gone:
            self.queue.discard(item)
            self._drop(item, perf_counter_ns(), "CANCELED", Cancelled("the client disconnected before the response"))
            self._finish_close()
        elif self._decoupled:
            self._open.cancel(item)
        else:
            item.request.cancelled = True

    def pause(self, item: QueuedRequest, paused: bool) -> None:
        self._open.pause(item, paused)

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        now = perf_counter_ns()
        expired = self.queue.expire(now)
        for item in expired:
            self._drop(item, now, "REJECTED", QueueTimeout("Request timeout expired while it waited in the queue"))
        if expired:
            self._finish_close()
        wake_ns = self.queue.next_expiry() or 0
        while self._idle and self.queue.size:
            take, wait_ns = next_batch(self.queue, self._policy, now)
            if not take:
                wake_ns = min(now + (wait_ns or 0), wake_ns or now + (wait_ns or 0))
                break
            inline = self._start(*self._take_affordable(take))
            if inline and self.queue.size:
                # Yield to other models and connections between two batches.
                self._tick_soon()
                return
        if self.queue.size and wake_ns:
            self._timer_ns = 0
            self._wake_at(wake_ns, now)

    def _take_affordable(self, count: int) -> tuple[list[QueuedRequest], int]:
        """Dequeue a batch and return the bytes that it reserves until it has run: for the copy of its inputs and for
        outputs as large as those of late. The batch is smaller where the budget does not suffice for all of it."""
        budget, size = self._budget, 0
        if budget.bytes_in_flight > budget.limit >> 3 or self._row_size > UNCOUNTED:
            sizes = (size_of(item.request.tensors) + self._row_size * item.rows for item in islice(self.queue, count))
            count, size = affordable(sizes, budget.left)
            budget.bytes_in_flight += size  # a single request runs in any case: what it holds would not be freed else
        return self.queue.take(count), size

    def _drop(self, item: QueuedRequest, now: int, reason: FailureReason, error: PredictorError) -> None:
        """Fail a request that never reached an instance."""
        self.stats.record_failure(now - item.enqueued_ns, reason)
        self._answer(item, error)

    def _wake_at(self, due_ns: int, now: int) -> None:
        """Set the timer of the next tick, unless an earlier one is set."""
        if self._timer is not None:
            if 0 < self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self._loop.call_later(max(0, due_ns - now) / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ns = None, 0
        self._tick()

    def _start(self, batch: list[QueuedRequest], size: int) -> bool:
        """Run the batch: on the loop if the model is fast enough (returns True), else in an idle instance's thread."""
        for item in batch:
            item.gone = True
        self.executing += len(batch)
        thread = self._idle.popleft()
        thread.reserved = size
        if self._decoupled:
            thread.start(batch, self._open.open(batch))
            return False
        if self._inline_policy.inline:
            measure_cpu = self._inline_policy.on_probation
            started, before = perf_counter_ns(), thread_time_ns() if measure_cpu else 0
            answers = thread.execute(batch)
            ended = perf_counter_ns()
            used = thread_time_ns() - before if measure_cpu else ended - started
            self._finished(thread, batch, answers, started, ended, used)
            return True
        thread.start(batch)
        return False

    def _finished(
        self, thread: InstanceThread, batch: list[QueuedRequest], answers: Sequence[Answer], started_ns: int,
        ended_ns: int, used_ns: int,
    ) -> None:  # fmt: skip
        if thread.abandoned:
            return
        self._release(thread)
        self.executing -= len(batch)
        if not thread.failure:
            self._idle.append(thread)
        else:
            self._instance_failed(thread)
        if self.queue.size and not self._inline_policy.inline:
            self._tick()  # start the next batch first: the instance computes while these answers are encoded
        if self._decoupled:
            rows = sum(item.rows for item in batch)
            self.stats.record_batch(rows, 0, ended_ns - started_ns, 0, time_ns() // 1_000_000)
        else:
            self._inline_policy.observe(used_ns)
            self._record(batch, answers, started_ns, ended_ns)
            self._delivery.answer_batch(batch, answers)
        if self.queue.size and self._idle:
            self._tick_soon()
        elif self._closed is not None:
            self._finish_close()

    def _release(self, thread: InstanceThread) -> None:
        self._budget.release(thread.reserved)
        thread.reserved = 0

    def _instance_failed(self, thread: InstanceThread) -> None:
        """Give the instance no more work; without any other, reject all requests."""
        log("backend.died", f"an instance died: {thread.failure}", level="ERROR", model=self.stats.name)
        if not self._live_threads:
            self._reject_reason = f"is not ready: {thread.failure}; load it again or restart the server"
            self.reject_all(NotReady(f"'{self.stats.name}' {self._reject_reason}"))

    def give_up_hung(self, ticks: int) -> str:
        """Give up instances that run the same batch as at the last `ticks` calls; return what the last one ran."""
        given_up = ""
        for thread in self._live_threads:
            batch = thread.overdue(ticks)
            if batch is None:
                continue
            ids = ", ".join(item.request.id for item in batch if item.request.id) or "without an id"
            given_up = f"an execution has not finished in time (requests {ids}); the instance is abandoned"
            thread.abandon(given_up)
            self._release(thread)
            self.executing -= len(batch)
            self._instance_failed(thread)
            now = perf_counter_ns()
            for item in batch:
                self.stats.record_failure(now - item.enqueued_ns, "BACKEND")
            self._delivery.answer_batch(batch, [BackendFailed(given_up)] * len(batch))
        return given_up

    def _record(self, batch: list[QueuedRequest], answers: Sequence[Answer], started_ns: int, ended_ns: int) -> None:
        took, now_ms = ended_ns - started_ns, time_ns() // 1_000_000
        rows, queued = 0, started_ns * len(batch)
        for item in batch:
            rows += item.rows
            queued -= item.enqueued_ns
            if item.request.trace is not None:
                item.request.trace.record_execution(item.enqueued_ns, started_ns, ended_ns)
        if isinstance(answers, SplitOutputs):
            failed, row_size = 0, size_of(answers.outputs) // (rows or 1)
        else:
            sizes = [
                size_of(answer) // (item.rows or 1)
                for item, answer in zip(batch, answers, strict=True)
                if not isinstance(answer, Exception)
            ]
            failed, row_size = len(batch) - len(sizes), max(sizes, default=0)
        self._row_size = max(row_size, self._row_size - (self._row_size >> 4))
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
        """Whether requests are queued or running, or an ensemble's request will follow (hold)."""
        return bool(self.queue.size or self.executing or self._holders or self._open)

    def suspend(self) -> bool:
        """Take all instances out of service if all are idle. New requests queue up until `resume`."""
        if self.busy or self._reject_reason or self._closed is not None or len(self._idle) < len(self._live_threads):
            return False
        self._idle.clear()
        self._suspended = True
        return True

    def resume(self) -> None:
        self._suspended = False
        self._idle.extend(self._live_threads)
        self._tick_soon()

    def reject_all(self, error: PredictorError) -> None:
        """Fail all queued requests."""
        now = perf_counter_ns()
        for item in self.queue.clear():
            item.gone = True
            self._drop(item, now, "REJECTED", error)
        self._finish_close()

    def hold(self) -> "Scheduler":
        """Prevent closing until `release`: for an ensemble's request that reaches this model at a later step."""
        self._holders += 1
        return self

    def release(self) -> None:
        self._holders -= 1
        self._finish_close()

    async def close(self) -> None:
        """Finish queued, running and held requests without batching delay, then close the instances."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._policy = replace(self._policy, delay_ns=0)
            self._tick_soon()
            self._finish_close()
        await asyncio.shield(self._closed)

    def _finish_close(self) -> None:
        if self._closed is None or self._stopping or self.queue.size or self.executing or self._holders or self._open:
            return
        self._reject_reason = "is unloaded"
        threads = [thread for thread in self._threads if not thread.abandoned]
        self._stopping = len(threads) + 1
        for thread in threads:
            thread.stop(self._thread_stopped)
        self._thread_stopped()  # of the abandoned ones, whose end is not waited for

    def _thread_stopped(self) -> None:
        self._stopping -= 1
        if self._stopping == 0 and self._closed is not None and not self._closed.done():
            self._stopping = -1
            self._closed.set_result(None)

    @property
    def _live_threads(self) -> list[InstanceThread]:
        return [thread for thread in self._threads if not thread.failure]

    @property
    def pending(self) -> int:
        """Number of queued requests."""
        return self.queue.size

    @property
    def problem(self) -> str:
        """Why an instance failed; empty while all are healthy."""
        return next((thread.failure for thread in self._threads if thread.failure), "")


def ignore() -> None:
    """Default `on_request`."""
