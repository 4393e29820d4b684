"""Ensembles: a graph of models served as one; each step runs in its model's scheduler once its inputs are available.

Has no instances and no file; `open_version` creates it from `ensemble_scheduling`. A request holds all models of the
graph from its first step to its last, so a model that is unloaded in between still serves it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from time import perf_counter_ns, time_ns
from typing import NamedTuple, Protocol

from pilotlight_predictor.core.requests import Done, InferRequest, InferResponse, Outputs
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BackendFailed, Cancelled, NotReady, PredictorError
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.repository.model_config import EnsembleStep, ModelConfig
from pilotlight_predictor.scheduling.executor_interface import Executor, HeldExecutor, Ticket
from pilotlight_predictor.scheduling.queue import QueuedRequest


class Model(Protocol):
    """Loaded model version, as an ensemble needs it."""

    @property
    def executor(self) -> Executor: ...
    def infer(
        self, request: InferRequest, done: Done, limits: None = ..., held: HeldExecutor | None = ...
    ) -> Ticket: ...


Find = Callable[[str, int], Model]


class HeldStep(NamedTuple):
    step: EnsembleStep
    model: Model
    held: HeldExecutor


class Ensemble(Executor):
    """An executor over other models, which have their own instances and schedulers."""

    def __init__(self, config: ModelConfig, find: Find, stats: ModelStats) -> None:
        self._config = config
        self._find = find
        self._stats = stats
        self._running: dict[QueuedRequest, _EnsembleRun] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, item: QueuedRequest) -> None:
        """Run a request. Raises NotReady if one of the models is not available."""
        graph = self.hold()
        self.run(item, graph.parts, graph.release)

    def hold(self) -> "HeldEnsemble":
        parts: list[HeldStep] = []
        try:
            for step in self._config.ensemble:
                model = self._find(step.model, step.version)
                parts.append(HeldStep(step, model, model.executor.hold()))
        except PredictorError as error:
            for part in parts:
                part.held.release()
            raise NotReady(f"ensemble '{self._config.name}' cannot run: {error}") from None
        return HeldEnsemble(self, parts)

    def run(self, item: QueuedRequest, parts: Sequence[HeldStep], release: Callable[[], None] = lambda: None) -> None:
        item.enqueued_ns = perf_counter_ns()
        self._idle.clear()
        finish = lambda answer: self._finish(item, answer, release)  # noqa: E731 - a name for three lines
        run = self._running[item] = _EnsembleRun(self._config, parts, item, finish)
        run.advance()

    def _finish(self, item: QueuedRequest, answer: Outputs | Exception, release: Callable[[], None]) -> None:
        if self._running.pop(item, None) is None:
            return
        release()
        took = perf_counter_ns() - item.enqueued_ns
        if isinstance(answer, Exception):
            self._stats.record_failure(took, "CANCELED" if isinstance(answer, Cancelled) else "BACKEND")
        else:
            self._stats.record_execution(1, item.rows, 0, 0, took, 0, time_ns() // 1_000_000)
        item.answer(answer)
        if not self._running:
            self._idle.set()

    def cancel(self, item: QueuedRequest) -> None:
        run = self._running.get(item)
        if run is not None:
            run.end(Cancelled("the client disconnected before the response"))

    async def close(self) -> None:
        """Wait for requests in flight, which hold the models that they still need."""
        await self._idle.wait()

    @property
    def pending(self) -> int:
        return 0  # requests wait in the queues of the steps

    @property
    def problem(self) -> str:
        for step in self._config.ensemble:
            try:
                reason = self._find(step.model, step.version).executor.problem
            except PredictorError as error:
                reason = str(error)
            if reason:
                return f"its model '{step.model}' is not ready: {reason}"
        return ""


class HeldEnsemble(HeldExecutor):
    """Models of an ensemble held for one request of an outer ensemble."""

    def __init__(self, ensemble: Ensemble, parts: Sequence[HeldStep]) -> None:
        self._ensemble = ensemble
        self.parts = parts

    def submit(self, item: QueuedRequest) -> None:
        self._ensemble.run(item, self.parts)

    def cancel(self, item: QueuedRequest) -> None:
        self._ensemble.cancel(item)

    def release(self) -> None:
        for part in self.parts:
            part.held.release()


class _EnsembleRun:
    """One request running through the graph."""

    def __init__(
        self,
        config: ModelConfig,
        parts: Sequence[HeldStep],
        item: QueuedRequest,
        finish: Callable[[Outputs | Exception], None],
    ) -> None:
        self._config = config
        self._request = item.request
        self._finish = finish
        self._tensors: dict[str, Tensor] = dict(item.request.inputs)
        self._waiting = list(parts)
        self._tickets: dict[int, Ticket | None] = {}  # by step; None until its model has accepted the request
        self._ended = False

    def advance(self) -> None:
        """Start every step whose inputs are available; end the run when no step is running."""
        ready = [part for part in self._waiting if all(t in self._tensors for t in part.step.input_map.values())]
        self._waiting = [part for part in self._waiting if part not in ready]
        # A cached response arrives inside `_start`: register all steps first, so that none of them seems the last.
        self._tickets.update({id(part.step): None for part in ready})
        for part in ready:
            if not self._ended:
                self._start(part)
        if not self._ended and not self._tickets:
            names = [output.name for output in self._config.outputs]
            missing = [name for name in names if name not in self._tensors]
            if missing:
                self.end(BackendFailed(f"ensemble '{self._config.name}': no step returned {', '.join(missing)}"))
            else:
                self.end({name: self._tensors[name] for name in names})

    def _start(self, part: HeldStep) -> None:
        step, key = part.step, id(part.step)
        inputs = {name: self._tensors[tensor] for name, tensor in step.input_map.items()}
        request = InferRequest(step.model, inputs, step.version, self._request.id, request_id=self._request.request_id)
        request.parameters = self._request.parameters
        request.sequence = copy(self._request.sequence)
        request.priority, request.timeout_us = self._request.priority, self._request.timeout_us
        try:
            ticket = part.model.infer(request, lambda result: self._step_done(step, result), None, part.held)
        except Exception as error:
            self.end(error)
            return
        if key in self._tickets:
            self._tickets[key] = ticket

    def _step_done(self, step: EnsembleStep, result: InferResponse | Exception) -> None:
        self._tickets.pop(id(step), None)
        if self._ended:
            return
        if isinstance(result, Exception):
            self.end(result)
            return
        for output, tensor in step.output_map.items():
            if output in result.outputs:
                self._tensors[tensor] = result.outputs[output]
        self.advance()

    def end(self, answer: Outputs | Exception) -> None:
        """Finish with an answer and cancel the steps still running."""
        if self._ended:
            return
        self._ended = True
        for ticket in list(self._tickets.values()):
            if ticket is not None:
                ticket.cancel()
        self._finish(answer)


def find_cycle(name: str, steps_of: Callable[[str], Iterable[str]], path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Path from an ensemble back to itself through its steps; empty if there is none."""
    if name in path:
        return (*path[path.index(name) :], name)
    return next((cycle for part in steps_of(name) if (cycle := find_cycle(part, steps_of, (*path, name)))), ())
