"""The loop that generates: requests join and leave a batch between two steps of the model.

    submit → waiting → prefill, a piece at a time → rows of the batch → one token per row and step → gone

It runs in a thread of its own, which alone touches the model. What a request is and how its text is told is in
text_task.py; keys and values are in text_cache.py, or in one cache per row for models whose layers forget (sliding
windows, recurrent states): those rows are stepped one after the other.
"""

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from time import sleep
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.text_cache import RowCache
from pilotlight_predictor.backends.text_model import TextModel
from pilotlight_predictor.backends.text_sampling import choose_all
from pilotlight_predictor.backends.text_task import Row, Task
from pilotlight_predictor.errors import BackendFailed

if TYPE_CHECKING:
    import torch

PREFILL: Final = 512  # tokens of prompts per step: those who are being answered wait no longer for those who come
WRITTEN_S: Final = 0.001  # in which a first token is written; a step takes ten times as long
LATE_S: Final = 0.02  # how often a client that reads slowly is looked after while nothing else is to be done


class Prefill:
    """A prompt of which `done` tokens are in its own cache."""

    def __init__(self, task: Task, cache: Any) -> None:
        self.task, self.cache, self.done = task, cache, 0


class Engine:
    """`slots` choices are generated at a time. `submit` is for any thread; all else happens in the engine's own."""

    def __init__(self, model: TextModel, slots: int) -> None:
        self._model = model
        self.slots = slots
        self._changed = Condition()
        self._waiting: deque[Task] = deque()
        self._free = slots
        self._stopping = False
        self._thread: Thread | None = None
        self._prefills: deque[Prefill] = deque()
        self._rows: list[Row] = []
        self._late: list[Task] = []
        self._batch = RowCache(model.layers) if model.together else None
        self.steps = 0

    def submit(self, task: Task) -> None:
        """Waits for free slots, so that the line of those who wait stays the scheduler's, which bounds it."""
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._work, name="pilotlight-text", daemon=True)
                self._thread.start()
            while self._free < len(task.rows) and not task.cancelled:
                self._changed.wait(0.1)  # a client that leaves wakes nobody
            self._free -= len(task.rows)
            self._waiting.append(task)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        import torch

        with torch.inference_mode():
            while self._next():
                self._sweep()
                self._guarded(self._prefill, lambda: [prefill.task for prefill in list(self._prefills)[:1]])
                self._guarded(self._step, lambda: [row.task for row in self._rows])
                if not (self._waiting or self._prefills or self._rows):
                    self._model.learn()

    def _next(self) -> bool:
        """Waits until there is something to do; False when the engine is closed."""
        with self._changed:
            while not (self._waiting or self._prefills or self._rows or self._stopping):
                self._changed.wait(LATE_S if self._late else None)
                if self._late:
                    break
            self._prefills.extend(Prefill(task, self._model.new_cache()) for task in self._waiting)
            self._waiting.clear()
            return not self._stopping

    def _sweep(self) -> None:
        """Those whose client has gone leave; those whose client reads slowly are told the rest when there is room."""
        for row in [row for row in self._rows if row.task.cancelled]:
            self._remove(row)
        for prefill in [prefill for prefill in self._prefills if prefill.task.cancelled]:
            self._prefills.remove(prefill)
            self._give_back(prefill.task, len(prefill.task.rows))
        self._late = [task for task in self._late if not task.told_rest()]

    def _prefill(self) -> None:
        budget = PREFILL
        while self._prefills and budget > 0:
            current = self._prefills[0]
            piece = current.task.prompt[current.done : current.done + budget]
            whole = self._model.prefill(piece) if len(piece) == len(current.task.prompt) else None
            if whole is None:
                scores = self._model.forward([piece], [current.done], current.cache, None)
            else:
                scores, current.cache = whole
            current.done += len(piece)
            budget -= len(piece)
            if current.done == len(current.task.prompt):
                self._begin(current, scores)
                self._prefills.popleft()

    def _begin(self, prefill: Prefill, scores: "torch.Tensor") -> None:
        """The prompt's last scores give the first token of every choice."""
        rows, task = prefill.task.rows, prefill.task
        choices = choose_all(scores.expand(len(rows), -1), [row.draw for row in rows])
        for row, choice in zip(rows, choices, strict=True):
            row.take(choice)
        self._tell(task)  # before keys and values find their place: nobody waits for that
        self._give_way()
        for number, row in enumerate(rows):
            if row.finished:
                self._give_back(task, 1)
            elif self._batch is not None:
                self._batch.join(prefill.cache)
                self._rows.append(row)
            else:
                row.cache = prefill.cache if number == len(rows) - 1 else self._model.copy_cache(prefill.cache)
                self._rows.append(row)

    def _step(self) -> None:
        if not self._rows:
            return
        self.steps += 1
        choices = choose_all(self._scores(), [row.draw for row in self._rows])
        for row, choice in zip(self._rows, choices, strict=True):
            row.take(choice)
        tasks = dict.fromkeys(row.task for row in self._rows)
        for row in [row for row in self._rows if row.finished]:
            self._remove(row)
        for task in tasks:
            self._tell(task)

    def _scores(self) -> "torch.Tensor":
        model = self._model
        if self._batch is None:
            import torch

            each = (model.forward([[row.token]], [row.length], row.cache, None) for row in self._rows)
            return torch.cat(list(each))
        self._batch.before_step()
        lengths, mask = list(self._batch.lengths), self._batch.mask(model.device)
        scores = model.forward([[row.token] for row in self._rows], lengths, self._batch.cache, mask)
        self._batch.after_step()
        return scores

    def _tell(self, task: Task) -> None:
        if not task.tell() and task not in self._late:
            self._late.append(task)

    def _give_way(self) -> None:
        """Lets the event loop write a first token. It needs the interpreter several times for that, and each time would
        wait until Python takes it from this thread, which launches kernels without a pause: 5 ms."""
        if self._model.device.type == "cuda":
            sleep(WRITTEN_S)

    def _remove(self, row: Row) -> None:
        place = self._rows.index(row)
        if self._batch is not None:
            self._batch.leave(place)
        self._rows[place] = self._rows[-1]
        self._rows.pop()
        self._give_back(row.task, 1)

    def _give_back(self, task: Task, slots: int) -> None:
        if task.cancelled:
            task.end()
        task.slots -= slots
        with self._changed:
            self._free += slots
            self._changed.notify_all()

    def _guarded(self, work: Callable[[], None], tasks: Callable[[], list[Task]]) -> None:
        """What the model raises ends those whose turn it was; the others, and those to come, go on."""
        try:
            work()
        except Exception as error:
            failed = BackendFailed("the text model failed: see the server's log")
            failed.__cause__ = error
            for task in dict.fromkeys(tasks()):
                task.fail(failed)
                self._drop(task)

    def _drop(self, task: Task) -> None:
        self._prefills = deque(prefill for prefill in self._prefills if prefill.task is not task)
        for row in [row for row in self._rows if row.task is task]:
            self._remove(row)
        self._give_back(task, task.slots)

    def idle(self, within_s: float) -> bool:
        """Whether every slot is free again in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free == self.slots, within_s)
