"""Sequence batcher: each sequence of requests stays with one instance and is served in order.

The executor of models with `sequence_batching`. It has one Scheduler per instance: SequenceTable assigns slots and
chooses the next request, the instance's Scheduler forms the batches. At most one request of a sequence is submitted at
a time, so a batch has requests of different sequences.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Final

from pilotlight_predictor.backends.base import Answer, AnyInstance
from pilotlight_predictor.core.requests import SequencePoint
from pilotlight_predictor.errors import BadRequest, Cancelled, NotReady, PredictorError
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.repository.model_config import ModelConfig, SequenceBatching, sequence_batching
from pilotlight_predictor.scheduling.batching import BatchPolicy
from pilotlight_predictor.scheduling.executor_interface import Executor
from pilotlight_predictor.scheduling.queue import QueuedRequest, RequestQueue
from pilotlight_predictor.scheduling.scheduler import Scheduler
from pilotlight_predictor.scheduling.sequence_slots import SequenceRun, SequenceTable, Slot

_RANGES: Final = {
    "UINT64": (0, 1 << 64),
    "INT64": (-1 << 63, 1 << 63),
    "UINT32": (0, 1 << 32),
    "INT32": (-1 << 31, 1 << 31),
}


class SequenceScheduler(Executor):
    """Scheduler over instances that it owns from construction to `close`. `bound`: as in SequenceTable."""

    def __init__(
        self, instances: Sequence[AnyInstance], config: ModelConfig, stats: ModelStats, bound: int, trial_ns: int = 0
    ) -> None:
        batching = sequence_batching(config)
        self._loop = asyncio.get_running_loop()
        rows = config.max_batch_size
        policy = (
            BatchPolicy(rows, batching.preferred, batching.delay_us * 1000, batching.min_rows)
            if rows
            else BatchPolicy()
        )
        self._schedulers = [
            Scheduler(
                [instance], policy, RequestQueue(None, 0), stats,
                preserve_ordering=batching.preserve_ordering, trial_ns=trial_ns,
            )
            for instance in instances
        ]  # fmt: skip
        slots = (Slot(number, index) for number in range(batching.slots) for index in range(len(self._schedulers)))
        self._table = SequenceTable(slots, bound, batching.idle_us * 1000)
        self._check = partial(_check, batching)
        self._stats = stats
        self._items: dict[QueuedRequest, SequenceRun] = {}
        self._sent: dict[QueuedRequest, QueuedRequest] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._holders = 0
        self._closing: asyncio.Event | None = None
        self._closed = False

    def submit(self, item: QueuedRequest) -> None:
        """Queue a request. Raises BadRequest, QueueFull or NotReady."""
        request = item.request
        if self._closed or not any(scheduler.alive for scheduler in self._schedulers):
            raise NotReady(f"'{request.model}' is not ready: {self.problem or 'it is unloaded'}")
        point = self._check(item)
        request.timeout_us = 0  # dropping one request of a sequence would make later answers wrong
        item.enqueued_ns = perf_counter_ns()
        run = self._items[item] = self._table.add(item, point, item.enqueued_ns)
        self._forward(run)

    def cancel(self, item: QueuedRequest) -> None:
        """Cancel for a client that disconnected. A waiting request ends its sequence; a running one is completed."""
        run = self._items.get(item)
        if run is None:
            return
        if item in self._sent:
            assert run.slot is not None
            self._schedulers[run.slot.instance].cancel(self._sent[item])
            return
        self._drop(run, _ended(run), {item: Cancelled("the client disconnected before the response")})

    def _forward(self, run: SequenceRun) -> None:
        item = self._table.take(run)
        if item is None:
            return
        assert run.slot is not None
        point = item.request.sequence
        assert point is not None
        point.slot, point.state = run.slot.number, run.state
        submitted = QueuedRequest(item.request, partial(self._answered, run, item, point), item.rows, item.signature)
        submitted.enqueued_ns = item.enqueued_ns
        self._sent[item] = submitted
        try:
            self._schedulers[run.slot.instance].submit(submitted)
        except PredictorError as error:
            self._table.remove_instance(run.slot.instance)
            self._drop(run, error)
            self._answered(run, item, point, error)
            if not any(each.alive for each in self._schedulers):
                for waiting in self._table.backlog():
                    self._drop(waiting, error)

    def _answered(self, run: SequenceRun, item: QueuedRequest, point: SequencePoint, answer: Answer) -> None:
        """Update the table before answering: the client may send its next request from within the callback."""
        del self._items[item], self._sent[item]
        if isinstance(answer, Cancelled):
            self._drop(run, _ended(run))
        ready = self._table.finished(run, point.end, perf_counter_ns())
        item.gone = True
        try:
            item.answer(answer)
        finally:
            for each in ready:
                self._forward(each)
            self._watch_idle()
            self._finish_close()

    def _drop(
        self, run: SequenceRun, error: PredictorError, others: Mapping[QueuedRequest, PredictorError] | None = None
    ) -> None:
        """End the sequence: fail its waiting requests with `error`, or with their own error in `others`."""
        now = perf_counter_ns()
        for item in self._table.drop(run):
            del self._items[item]
            item.gone = True
            self._stats.record_failure(now - item.enqueued_ns, "CANCELED")
            item.answer((others or {}).get(item, error))
        for each in self._table.fill():
            self._forward(each)
        self._finish_close()

    def _watch_idle(self) -> None:
        due = self._table.next_expiry()
        if self._timer is None and due is not None:
            self._timer = self._loop.call_later(max(0, due - perf_counter_ns()) / 1e9, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._table.expire(perf_counter_ns())
        for each in self._table.fill():
            self._forward(each)
        self._watch_idle()

    def hold(self) -> "SequenceScheduler":
        self._holders += 1
        return self

    def release(self) -> None:
        self._holders -= 1
        self._finish_close()

    def give_up_hung(self, ticks: int) -> str:
        given_up = [scheduler.give_up_hung(ticks) for scheduler in self._schedulers]
        return next(filter(None, given_up), "")

    async def close(self) -> None:
        """Finish waiting and running requests; open sequences end."""
        if self._closing is None:
            self._closing = asyncio.Event()
            self._finish_close()
        await self._closing.wait()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(scheduler.close() for scheduler in self._schedulers))

    def _finish_close(self) -> None:
        if self._closing is not None and not self._items and not self._holders:
            self._closed = True
            self._closing.set()

    @property
    def pending(self) -> int:
        return self._table.waiting + sum(scheduler.pending for scheduler in self._schedulers)

    @property
    def problem(self) -> str:
        return next((scheduler.problem for scheduler in self._schedulers if scheduler.problem), "")


def _ended(run: SequenceRun) -> BadRequest:
    return BadRequest(f"sequence {run.id} was ended because one of its requests was cancelled: start it again")


def _check(batching: SequenceBatching, item: QueuedRequest) -> SequencePoint:
    point, model = item.request.sequence, item.request.model
    if item.rows > 1:
        raise BadRequest(
            f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
        )
    if point is None:
        raise BadRequest(f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID")
    for control in batching.controls:
        if control.kind == "CORRID" and control.datatype in _RANGES:
            low, high = _RANGES[control.datatype]
            if isinstance(point.id, str) or not low <= point.id < high:
                raise BadRequest(
                    f"parameters.sequence_id = {point.id!r}, must be a number: '{model}' takes it as {control.datatype}"
                )
    return point
