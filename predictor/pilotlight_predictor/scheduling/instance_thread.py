"""Thread of one model instance, and the policy that decides whether a model is fast enough to run on the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter_ns, thread_time_ns
from typing import Final

from pilotlight_predictor.backends.base import Answer, AnyInstance, DecoupledRequest, is_decoupled
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.scheduling.queue import QueuedRequest

QUICK_NS: Final = 300_000  # above it the 50 µs of a thread are less than 17 % of the time
# Other connections wait meanwhile. Three times QUICK_NS: a model with durations around one limit must not alternate.
TOO_SLOW_NS: Final = 1_000_000
TRIALS: Final = 3  # consecutive fast executions in the thread before the model moves to the loop
MAX_SLOW: Final = 2  # consecutive slow executions on the loop that end it: a single one may be noise
RETRY_AFTER: Final = 1_000  # fast executions in the thread before a demoted model is tried on the loop again

# (thread, batch, answers, started_ns, ended_ns, used_ns); without answers a decoupled batch has been started.
Finished = Callable[["InstanceThread", list[QueuedRequest], Sequence[Answer], int, int, int], None]


class InstanceThread:
    """Thread that executes batches and passes the answers to the event loop.

    `failure`: why the instance cannot execute any more; empty while it can. `abandoned`: it may still execute a batch
    that was answered for it, and its result is dropped.
    """

    def __init__(self, instance: AnyInstance, loop: asyncio.AbstractEventLoop, finished: Finished) -> None:
        self._instance = instance
        self._loop = loop
        self._finished = finished
        self._batches: SimpleQueue[tuple[list[QueuedRequest], Sequence[DecoupledRequest]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._stopped: Callable[[], None] | None = None
        self.failure = ""
        self.abandoned = False
        self.reserved = 0  # bytes in flight of the batch
        self._running: list[QueuedRequest] | None = None
        self._watched: list[QueuedRequest] | None = None  # what ran at the last call of `overdue`
        self._ticks = 0

    def overdue(self, ticks: int) -> list[QueuedRequest] | None:
        """Return the running batch if it also ran at the last `ticks` calls.

        Calls are counted instead of time, so that a process that was paused gives up nothing.
        """
        running = self._running
        self._ticks = self._ticks + 1 if running is not None and running is self._watched else 0
        self._watched = running
        return running if self._ticks >= ticks else None

    def abandon(self, failure: str) -> None:
        self.failure, self.abandoned = failure, True

    def start(self, batch: list[QueuedRequest], decoupled: Sequence[DecoupledRequest] = ()) -> None:
        """Queue a batch. The thread starts with the first one: models that run on the loop never have it.

        `decoupled`: the batch as a decoupled model sees it.
        """
        self._ensure_thread()
        self._batches.put((batch, decoupled))

    def stop(self, stopped: Callable[[], None]) -> None:
        """Close the instance after the current batch, in its own thread: CUDA contexts belong to that thread, and user
        code may block. `stopped` is called on the loop afterwards."""
        self._stopped = stopped
        self._ensure_thread()
        self._batches.put(None)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="pilotlight-instance", daemon=True)
            self._thread.start()

    def execute(self, batch: list[QueuedRequest]) -> Sequence[Answer]:
        return self.answers([item.request for item in batch])

    def answers(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        """Execute a batch and return one answer per request. Never raises."""
        assert not is_decoupled(self._instance)
        try:
            answers = self._instance.execute(batch)
        except Exception as error:
            # One bad request must not fail the rest of the batch: run each alone, so that only that one fails.
            return [error] if len(batch) == 1 else [self.answers([request])[0] for request in batch]
        except BaseException as error:  # user code that exits its thread must not end the server
            self.failure = f"the model raised {type(error).__name__}"
            return [BackendFailed(self.failure)] * len(batch)
        if len(answers) != len(batch):
            wrong = RuntimeError(f"the model returned {len(answers)} responses to {len(batch)} requests")
            return [wrong] * len(batch)
        return answers

    def begin(self, batch: Sequence[DecoupledRequest]) -> None:
        """Start a batch of a decoupled model, which answers later; a failure to start is the answer to all of it."""
        assert is_decoupled(self._instance)
        try:
            self._instance.begin(batch)
            return
        except Exception as error:
            failed = error
        except BaseException as error:
            self.failure = f"the model raised {type(error).__name__}"
            failed = BackendFailed(self.failure)
        for request in batch:
            request.send(failed)

    def _work(self) -> None:
        while (work := self._batches.get()) is not None:
            batch, decoupled = work
            started, used = perf_counter_ns(), thread_time_ns()
            answers: Sequence[Answer] = ()
            if decoupled:  # not watched: it may answer for as long as it likes
                self.begin(decoupled)
            else:
                self._running = batch
                answers = self.execute(batch)
                self._running = None
            ended, used = perf_counter_ns(), thread_time_ns() - used
            self._post(partial(self._finished, self, batch, answers, started, ended, used))
            del work, batch, decoupled, answers  # an idle thread must not hold the memory of its last batch
        try:
            self._instance.close()
        except BaseException as error:
            log("backend.close_failed", "an instance failed while it was closed", level="ERROR", error=error)
        del self._instance  # this object is part of a reference cycle that may never be collected: free the weights now
        assert self._stopped is not None
        self._post(self._stopped)

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            return


class InlineExecutionPolicy:
    """Policy of running a model on the event loop, from the durations of its executions. No clock, no I/O.

    Passing a batch to a thread and back costs about 50 µs; a small ONNX model computes in 20 µs. On the loop, requests
    of one tick form a batch for free; a slower model would block every connection. `trial_ns`: duration of a warm-up
    execution on an idle model; 0 without warm-up.
    """

    def __init__(self, allowed: bool, trial_ns: int = 0) -> None:
        self._allowed = allowed
        self.inline = allowed and 0 < trial_ns <= QUICK_NS
        self._trials = TRIALS
        self._slow = 0

    @property
    def on_probation(self) -> bool:
        """Whether one more slow execution demotes the model: then thread CPU time must be measured, at the cost of two
        system calls. Otherwise wall time suffices: it is never less than CPU time."""
        return self._slow > 0

    def observe(self, duration_ns: int) -> None:
        """Record an execution. `duration_ns`: CPU time of the executing thread, so that a busy machine does not count
        against the model."""
        if not self._allowed:
            return
        if self.inline:
            self._slow = self._slow + 1 if duration_ns > TOO_SLOW_NS else 0
            if self._slow >= MAX_SLOW:
                self.inline, self._trials = False, RETRY_AFTER
            return
        if duration_ns <= QUICK_NS:
            self._trials -= 1
        else:
            self._trials = max(self._trials, TRIALS)
        self.inline = self._trials <= 0
        self._slow = 0
