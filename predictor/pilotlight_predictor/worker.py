"""The thread of one instance: takes a batch, executes it, hands the answers back to the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter_ns, thread_time_ns

from pilotlight_predictor.backends.base import Answer, AnyInstance, Asked, is_decoupled
from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.logs import log
from pilotlight_predictor.waiting import Item

Finished = Callable[["Worker", list[Item], Sequence[Answer], int, int, int], None]  # no answers: the batch has begun


class Worker:
    """`death` says why the instance can answer no more; empty while it can."""

    def __init__(self, instance: AnyInstance, loop: asyncio.AbstractEventLoop, finished: Finished) -> None:
        self._instance = instance
        self._loop = loop
        self._finished = finished
        self._batches: SimpleQueue[tuple[list[Item], Sequence[Asked]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._stopped: Callable[[], None] | None = None
        self.death = ""

    def start(self, batch: list[Item], asked: Sequence[Asked] = ()) -> None:
        """The thread is made at the first batch that needs one: models that run on the loop never have it.

        `asked` is the batch as a decoupled model sees it.
        """
        self._ensure_thread()
        self._batches.put((batch, asked))

    def stop(self, stopped: Callable[[], None]) -> None:
        """Frees the instance after the batch in hand, in its own thread: CUDA contexts live there, and user code may
        take its time. `stopped` is called on the loop once that is done."""
        self._stopped = stopped
        self._ensure_thread()
        self._batches.put(None)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="pilotlight-instance", daemon=True)
            self._thread.start()

    def execute(self, batch: list[Item]) -> Sequence[Answer]:
        return self.answers([item.request for item in batch])

    def answers(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        """One per request, whatever the model does."""
        assert not is_decoupled(self._instance)
        try:
            answers = self._instance.execute(batch)
        except Exception as error:
            # One bad request must not fail its neighbours: each runs alone, and only the culprit fails.
            return [error] if len(batch) == 1 else [self.answers([request])[0] for request in batch]
        except BaseException as error:  # user code that exits its thread: the model is dead, the server is not
            self.death = f"the model ended its own execution with {type(error).__name__}"
            return [BackendFailed(self.death)] * len(batch)
        if len(answers) != len(batch):
            wrong = RuntimeError(f"the model gave {len(answers)} answers to {len(batch)} requests")
            return [wrong] * len(batch)
        return answers

    def begin(self, asked: Sequence[Asked]) -> None:
        """Answers come when they like; a batch that cannot be begun is answered here."""
        assert is_decoupled(self._instance)
        try:
            self._instance.begin(asked)
            return
        except Exception as error:
            failed = error
        except BaseException as error:
            self.death = f"the model ended its own execution with {type(error).__name__}"
            failed = BackendFailed(self.death)
        for each in asked:
            each.send(failed)

    def _work(self) -> None:
        while (given := self._batches.get()) is not None:
            batch, asked = given
            started, used = perf_counter_ns(), thread_time_ns()
            answers: Sequence[Answer] = ()
            if asked:
                self.begin(asked)
            else:
                answers = self.execute(batch)
            ended, used = perf_counter_ns(), thread_time_ns() - used
            self._post(partial(self._finished, self, batch, answers, started, ended, used))
        self._close()
        assert self._stopped is not None
        self._post(self._stopped)

    def _close(self) -> None:
        try:
            self._instance.close()
        except BaseException as error:
            log("backend.close_failed", "an instance failed while it was closed", level="ERROR", error=error)
        del self._instance  # we are part of a circle that the collector may never walk, and weights hang on it

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop has closed: nobody waits any more
            return
