"""The thread of one instance: takes a batch, executes it, hands the answers back to the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from time import perf_counter_ns

from pilotlight_predictor.backends.base import Answer, Instance
from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.waiting import Item

Finished = Callable[["Worker", list[Item], Sequence[Answer], int, int], None]


class Worker:
    def __init__(self, instance: Instance, loop: asyncio.AbstractEventLoop, finished: Finished) -> None:
        self.instance = instance
        self._loop = loop
        self._finished = finished
        self._batches: SimpleQueue[list[Item] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self.alive = True

    def start(self, batch: list[Item]) -> None:
        """The thread is made at the first batch that needs one: models that run on the loop never have it."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="pilotlight-instance", daemon=True)
            self._thread.start()
        self._batches.put(batch)

    def stop(self) -> None:
        """Frees the instance after the batch in hand; in its own thread, where CUDA contexts live."""
        if self._thread is None:
            self.instance.close()
        self._batches.put(None)

    def execute(self, batch: list[Item]) -> Sequence[Answer]:
        """One answer per item, whatever the model does."""
        try:
            answers = self.instance.execute([item.request for item in batch])
        except Exception as error:
            return [error] * len(batch)
        except BaseException as error:  # user code that exits its thread: the model is dead, the server is not
            self.alive = False
            return [BackendFailed(f"the model ended its own execution with {type(error).__name__}")] * len(batch)
        if len(answers) != len(batch):
            wrong = RuntimeError(f"the model gave {len(answers)} answers to {len(batch)} requests")
            return [wrong] * len(batch)
        return answers

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            started = perf_counter_ns()
            answers = self.execute(batch)
            ended = perf_counter_ns()
            self._loop.call_soon_threadsafe(self._finished, self, batch, answers, started, ended)
        self.instance.close()
