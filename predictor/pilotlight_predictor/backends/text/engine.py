"""Continuous batching of text generation: requests join and leave a batch between two steps of the model.

    submit → waiting → chunked prefill → rows of the batch → one token per row and step → done

Runs in a thread of its own, the only one that uses the model. Requests are in generation_request.py. The KV cache is
in kv_cache.py, or one cache per row for models with sliding windows or recurrent states, which run one row after
another.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from copy import deepcopy
from threading import Condition, Thread
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.text.generation_request import ChoiceRow, Task
from pilotlight_predictor.backends.text.kv_cache import BatchKVCache
from pilotlight_predictor.backends.text.model import TextModel
from pilotlight_predictor.backends.text.sampler import sample_all
from pilotlight_predictor.errors import BackendFailed, NotReady

if TYPE_CHECKING:
    import torch

PREFILL_TOKENS: Final = 512  # of prompts per step, which bounds the delay for rows being generated
GRAPH_COLUMNS: Final = 1024  # of the KV cache from the start, if steps run by CUDA graphs
WRITE_PAUSE_S: Final = 0.001  # time for the event loop to write a first token; a step takes ten times as long
GATHER_SHARE: Final = 0.05  # of the last prefill: how long an idle engine waits for a request beside the first
MAX_GATHER_S: Final = 0.01
RETRY_S: Final = 0.02  # interval at which an idle engine retries clients that read slowly


class Prefill:
    """A prompt with `done` tokens in its own cache."""

    def __init__(self, task: Task, cache: Any) -> None:
        self.task, self.cache, self.done = task, cache, 0


class TextEngine:
    """Generator of up to `slots` choices at a time. `submit` and `call` are for any thread, the rest for its own."""

    def __init__(self, model: TextModel, slots: int) -> None:
        self._model = model
        self.slots = slots
        self._changed = Condition()
        self._waiting: deque[Task] = deque()
        self._calls: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._free = slots
        self._stopping = False
        self._thread: Thread | None = None
        self._prefills: deque[Prefill] = deque()
        self._rows: list[ChoiceRow] = []
        self._late: list[Task] = []
        self._batch, self._step_graphs = None, None
        if model.batchable:
            fixed = (slots, min(model.context, GRAPH_COLUMNS)) if model.uses_graphs else None
            self._batch = BatchKVCache(model.layers, fixed)
            self._step_graphs = model.step_graphs(self._batch)
        self._gather_s = 0.0
        self.steps = 0

    def submit(self, task: Task) -> None:
        """Queue a task; blocks until slots are free, so that requests wait in the scheduler's bounded queue."""
        with self._changed:
            self._start()
            while self._free < len(task.rows) and not task.cancelled:
                self._changed.wait(0.1)  # cancellation does not notify
            self._free -= len(task.rows)
            self._waiting.append(task)
            self._changed.notify_all()

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` between two steps and wait for its end; raise what it raises."""
        future: Future[None] = Future()
        with self._changed:
            if self._stopping:
                raise NotReady("the text model is being unloaded")
            self._start()
            self._calls.append((work, future))
            self._changed.notify_all()
        future.result()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._loop, name="pilotlight-text", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        import torch

        with torch.inference_mode():
            # One chunk of prefill and one token per row alternate, so that long prompts do not stall generation.
            while self._wait_for_work():
                self._run_calls()
                self._sweep()
                self._run_guarded(self._prefill, lambda: [prefill.task for prefill in list(self._prefills)[:1]])
                self._run_guarded(self._step, lambda: [row.task for row in self._rows])
                if not (self._waiting or self._prefills or self._rows):
                    self._model.capture_graphs()
            self._run_calls()

    def _run_calls(self) -> None:
        while self._calls:
            work, future = self._calls.popleft()
            try:
                future.set_result(work())
            except Exception as error:  # for the thread that waits
                future.set_exception(error)

    def _wait_for_work(self) -> bool:
        """Wait for work; return False when the engine is closed."""
        with self._changed:
            idle = not (self._prefills or self._rows)
            while not (self._waiting or self._calls or self._prefills or self._rows or self._stopping):
                self._changed.wait(RETRY_S if self._late else None)
                if self._late:
                    break
            if idle:
                self._gather()
            self._prefills.extend(Prefill(task, self._model.new_cache()) for task in self._waiting)
            self._waiting.clear()
            return not self._stopping

    def _gather(self) -> None:
        """Wait until no more requests come with the first one: together they need one pass for their prompts, one step
        less, and, if they are equally long, no mask in any step."""
        count = 0
        while self._gather_s and count < len(self._waiting) < self.slots:
            count = len(self._waiting)
            self._changed.wait(self._gather_s)

    def _sweep(self) -> None:
        """Remove cancelled requests, and send pending text to clients that read slowly."""
        for row in [row for row in self._rows if row.task.cancelled]:
            self._remove(row)
        for prefill in [prefill for prefill in self._prefills if prefill.task.cancelled]:
            self._prefills.remove(prefill)
            self._release_slots(prefill.task, len(prefill.task.rows))
        self._late = [task for task in self._late if not task.flush_late()]

    def _prefill(self) -> None:
        budget, began = PREFILL_TOKENS, perf_counter()
        while self._prefills and budget > 0:
            if len(group := self._similar_prefills(budget)) > 1:
                budget -= self._prefill_together(group)
                continue
            current = self._prefills[0]
            chunk = current.task.prompt[current.done : current.done + budget]
            adapter = current.task.adapter
            whole = self._model.prefill(chunk, adapter) if len(chunk) == len(current.task.prompt) else None
            if whole is None:
                scores = self._model.forward([chunk], [current.done], current.cache, None, [adapter])
            else:
                scores, current.cache = whole
            current.done += len(chunk)
            budget -= len(chunk)
            if current.done == len(current.task.prompt):
                self._begin(current, scores)
                self._prefills.popleft()
        if budget < PREFILL_TOKENS and self._model.device.type == "cpu":
            self._gather_s = min(GATHER_SHARE * (perf_counter() - began), MAX_GATHER_S)

    def _similar_prefills(self, budget: int) -> list[Prefill]:
        """Return the first prompts in the queue if one pass can read them whole, padded by half of it at most."""
        group: list[Prefill] = []
        for prefill in self._prefills if self._batch is not None and not self._model.uses_graphs else ():
            lengths = [len(each.task.prompt) for each in (*group, prefill)]
            longest = max(lengths)
            if prefill.done or longest > 2 * min(lengths) or longest * len(lengths) > budget:
                break
            group.append(prefill)
        return group

    def _prefill_together(self, group: list[Prefill]) -> int:
        """Read prompts in one pass, which takes little longer than one of them; return the number of their tokens."""
        tasks = [prefill.task for prefill in group]
        scores, caches = self._model.prefill_together([t.prompt for t in tasks], [t.adapter for t in tasks])
        for row, (prefill, cache) in enumerate(zip(group, caches, strict=True)):
            prefill.cache = cache
            self._begin(prefill, scores[row : row + 1], pause=row == len(group) - 1)
            self._prefills.popleft()
        return sum(len(prefill.task.prompt) for prefill in group)

    def _begin(self, prefill: Prefill, scores: "torch.Tensor", *, pause: bool = True) -> None:
        """Sample the first token of every choice from the prompt's last scores, and add the rows to the batch."""
        rows, task = prefill.task.rows, prefill.task
        choices = sample_all(scores.expand(len(rows), -1), [row.sampler for row in rows])
        for row, choice in zip(rows, choices, strict=True):
            row.append(choice)
        self._flush(task)  # before the KV cache is copied, for the time to first token
        if pause and self._model.device.type == "cuda":
            # To write the token the event loop needs the GIL several times, and would wait 5 ms each time while this
            # thread launches kernels without a pause.
            sleep(WRITE_PAUSE_S)
        for number, row in enumerate(rows):
            if row.finished:
                self._release_slots(task, 1)
            elif self._batch is not None:
                self._batch.add_row(prefill.cache)
                self._rows.append(row)
            else:
                row.cache = prefill.cache if number == len(rows) - 1 else deepcopy(prefill.cache)
                self._rows.append(row)

    def _step(self) -> None:
        if not self._rows:
            return
        self.steps += 1
        choices = sample_all(self._scores(), [row.sampler for row in self._rows])
        for row, choice in zip(self._rows, choices, strict=True):
            row.append(choice)
        tasks = dict.fromkeys(row.task for row in self._rows)
        for row in [row for row in self._rows if row.finished]:
            self._remove(row)
        for task in tasks:
            self._flush(task)

    def _scores(self) -> "torch.Tensor":
        model = self._model
        if self._batch is None:
            import torch

            each = (
                model.forward([[row.token]], [row.length], row.cache, None, [row.task.adapter]) for row in self._rows
            )
            return torch.cat(list(each))
        self._batch.before_step()
        adapters = [row.task.adapter for row in self._rows]
        by_graph = self._step_graphs and self._step_graphs.run([row.token for row in self._rows], adapters)
        if by_graph is not None:
            self._batch.after_step()
            return by_graph
        lengths, mask = list(self._batch.lengths), self._batch.mask(model.device)
        scores = model.forward([[row.token] for row in self._rows], lengths, self._batch.cache, mask, adapters)
        self._batch.after_step()
        return scores

    def _flush(self, task: Task) -> None:
        if not task.flush() and task not in self._late:
            self._late.append(task)

    def _remove(self, row: ChoiceRow) -> None:
        index = self._rows.index(row)
        if self._batch is not None:
            self._batch.remove_row(index)
        self._rows[index] = self._rows[-1]
        self._rows.pop()
        self._release_slots(row.task, 1)

    def _release_slots(self, task: Task, slots: int) -> None:
        if task.cancelled:
            task.end()
        task.slots -= slots
        if slots and not task.slots:
            task.on_released()
        with self._changed:
            self._free += slots
            self._changed.notify_all()

    def _run_guarded(self, work: Callable[[], None], tasks: Callable[[], list[Task]]) -> None:
        """Run `work`; if the model raises, fail the tasks concerned and continue with the others."""
        try:
            work()
        except Exception as error:
            failed = BackendFailed("the text model failed: see the server's log")
            failed.__cause__ = error
            for task in dict.fromkeys(tasks()):
                task.fail(failed)
                self._prefills = deque(prefill for prefill in self._prefills if prefill.task is not task)
                for row in [row for row in self._rows if row.task is task]:
                    self._remove(row)
                self._release_slots(task, task.slots)
