"""A graph of models served as one: each step runs as soon as its tensors are there, through the step's own scheduler.

It has no instances and no file; the registry makes it from the configuration's `ensemble_scheduling`.
"""

from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Protocol

from pilotlight_predictor.errors import BackendFailed, Cancelled
from pilotlight_predictor.inference import NEWEST, Done, InferRequest, InferResponse, Outputs
from pilotlight_predictor.repository.model_config import EnsembleStep, ModelConfig
from pilotlight_predictor.stats import ModelStats
from pilotlight_predictor.tensors import Tensor
from pilotlight_predictor.waiting import Item


class Ticket(Protocol):
    def cancel(self) -> None: ...


Infer = Callable[[InferRequest, Done], Ticket]


class Ensemble:
    """An Executor over other models."""

    def __init__(self, config: ModelConfig, infer: Infer, stats: ModelStats, alive: Callable[[], bool]) -> None:
        self._config = config
        self._infer = infer
        self._stats = stats
        self._alive = alive
        self._running: dict[Item, _Run] = {}

    def submit(self, item: Item) -> None:
        item.enqueued_ns = perf_counter_ns()
        run = self._running[item] = _Run(self._config, self._infer, item, lambda answer: self._finish(item, answer))
        run.advance()

    def _finish(self, item: Item, answer: Outputs | Exception) -> None:
        if self._running.pop(item, None) is None:
            return
        took = perf_counter_ns() - item.enqueued_ns
        if isinstance(answer, Exception):
            self._stats.record_failure(took, "CANCELED" if isinstance(answer, Cancelled) else "BACKEND")
        else:
            self._stats.record_execution(1, item.rows, 0, 0, took, 0, time_ns() // 1_000_000)
        item.done(answer)

    def cancel(self, item: Item) -> None:
        run = self._running.get(item)
        if run is not None:
            run.cancel()
            self._finish(item, Cancelled("the client left before the answer"))

    async def close(self) -> None:
        """Runs in flight finish through their steps' own schedulers."""

    @property
    def pending(self) -> int:
        return len(self._running)

    @property
    def alive(self) -> bool:
        return self._alive()


class _Run:
    """One request on its way through the graph."""

    def __init__(
        self, config: ModelConfig, infer: Infer, item: Item, finish: Callable[[Outputs | Exception], None]
    ) -> None:
        self._config = config
        self._infer = infer
        self._request = item.request
        self._finish = finish
        self._tensors: dict[str, Tensor] = dict(item.request.inputs)
        self._waiting = list(config.ensemble)
        self._tickets: dict[int, Ticket] = {}
        self._ended = False

    def advance(self) -> None:
        """Starts every step whose tensors are all there, and ends the run when nothing is left."""
        ready = [s for s in self._waiting if all(t in self._tensors for t in s.input_map.values())]
        self._waiting = [step for step in self._waiting if step not in ready]
        for step in ready:
            if not self._ended:
                self._start(step)
        if not self._ended and not self._tickets:
            self._end(self._outputs())

    def _start(self, step: EnsembleStep) -> None:
        inputs = {name: self._tensors[tensor] for name, tensor in step.input_map.items()}
        request = InferRequest(step.model, inputs, step.version if step.version > 0 else NEWEST, self._request.id)
        request.priority, request.timeout_us = self._request.priority, self._request.timeout_us
        key = id(step)
        self._tickets[key] = _NOTHING
        try:
            ticket = self._infer(request, lambda result: self._stepped(step, key, result))
        except Exception as error:
            self._end(error)
            return
        if key in self._tickets:
            self._tickets[key] = ticket

    def _stepped(self, step: EnsembleStep, key: int, result: InferResponse | Exception) -> None:
        self._tickets.pop(key, None)
        if self._ended:
            return
        if isinstance(result, Exception):
            self._end(result)
            return
        for output, tensor in step.output_map.items():
            if output in result.outputs:
                self._tensors[tensor] = result.outputs[output]
        self.advance()

    def _outputs(self) -> Outputs | Exception:
        names = [output.name for output in self._config.outputs]
        missing = [name for name in names if name not in self._tensors]
        if missing:
            return BackendFailed(f"ensemble '{self._config.name}': no step gave {', '.join(missing)}")
        return {name: self._tensors[name] for name in names}

    def _end(self, answer: Outputs | Exception) -> None:
        if not self._ended:
            self._ended = True
            self.cancel()
            self._finish(answer)

    def cancel(self) -> None:
        self._ended = True
        for ticket in list(self._tickets.values()):
            ticket.cancel()


class _Nothing:
    def cancel(self) -> None:
        return None


_NOTHING = _Nothing()
