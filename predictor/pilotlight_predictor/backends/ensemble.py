"""A graph of models served as one: each step runs as soon as its tensors are there, through the step's own scheduler.

It has no instances and no file; opening.py makes it from the configuration's `ensemble_scheduling`. A request holds
all models of the graph from its first step to its last, so a model that is unloaded meanwhile still serves it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from time import perf_counter_ns, time_ns
from typing import NamedTuple, Protocol

from pilotlight_predictor.errors import BackendFailed, Cancelled, NotReady, PredictorError
from pilotlight_predictor.executor import Executor, Held, Ticket
from pilotlight_predictor.inference import Done, InferRequest, InferResponse, Outputs
from pilotlight_predictor.repository.model_config import EnsembleStep, ModelConfig
from pilotlight_predictor.stats import ModelStats
from pilotlight_predictor.tensors import Tensor
from pilotlight_predictor.waiting import Item


class Model(Protocol):
    """What an ensemble needs of a loaded model version."""

    @property
    def executor(self) -> Executor: ...
    def infer(self, request: InferRequest, done: Done, limits: None = ..., held: Held | None = ...) -> Ticket: ...


Find = Callable[[str, int], Model]


class Part(NamedTuple):
    step: EnsembleStep
    model: Model
    held: Held


class Ensemble:
    """An Executor over other models."""

    def __init__(self, config: ModelConfig, find: Find, stats: ModelStats) -> None:
        self._config = config
        self._find = find
        self._stats = stats
        self._running: dict[Item, _Run] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, item: Item) -> None:
        """Raises NotReady when one of its models cannot be had."""
        graph = self.hold()
        self.run(item, graph.parts, graph.release)

    def now(self) -> None:
        """Its models have turns of their own."""

    def hold(self) -> "Graph":
        parts: list[Part] = []
        try:
            for step in self._config.ensemble:
                model = self._find(step.model, step.version)
                parts.append(Part(step, model, model.executor.hold()))
        except PredictorError as error:
            for part in parts:
                part.held.release()
            raise NotReady(f"ensemble '{self._config.name}' cannot run: {error}") from None
        return Graph(self, parts)

    def run(self, item: Item, parts: Sequence[Part], release: Callable[[], None] = lambda: None) -> None:
        item.enqueued_ns = perf_counter_ns()
        self._idle.clear()
        finish = lambda answer: self._finish(item, answer, release)  # noqa: E731 - a name for three lines
        run = self._running[item] = _Run(self._config, parts, item, finish)
        run.advance()

    def _finish(self, item: Item, answer: Outputs | Exception, release: Callable[[], None]) -> None:
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

    def cancel(self, item: Item) -> None:
        run = self._running.get(item)
        if run is not None:
            run.end(Cancelled("the client left before the answer"))

    def pause(self, item: Item, paused: bool) -> None:
        """Nothing to hold back: an ensemble answers once."""

    async def close(self) -> None:
        """Requests in flight finish: they hold the models that they still need."""
        await self._idle.wait()

    @property
    def pending(self) -> int:
        return len(self._running)

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

    @property
    def alive(self) -> bool:
        return not self.problem


class Graph:
    """The models of an ensemble, held open for one request of an ensemble above it."""

    def __init__(self, ensemble: Ensemble, parts: Sequence[Part]) -> None:
        self._ensemble = ensemble
        self.parts = parts

    def submit(self, item: Item) -> None:
        self._ensemble.run(item, self.parts)

    def cancel(self, item: Item) -> None:
        self._ensemble.cancel(item)

    def pause(self, item: Item, paused: bool) -> None:
        self._ensemble.pause(item, paused)

    def release(self) -> None:
        for part in self.parts:
            part.held.release()


class _Run:
    """One request on its way through the graph."""

    def __init__(
        self,
        config: ModelConfig,
        parts: Sequence[Part],
        item: Item,
        finish: Callable[[Outputs | Exception], None],
    ) -> None:
        self._config = config
        self._request = item.request
        self._finish = finish
        self._tensors: dict[str, Tensor] = dict(item.request.inputs)
        self._waiting = list(parts)
        self._tickets: dict[int, Ticket | None] = {}  # by step; None until its model has taken the request
        self._ended = False

    def advance(self) -> None:
        """Starts every step whose tensors are all there, and ends the run when nothing is left."""
        ready = [part for part in self._waiting if all(t in self._tensors for t in part.step.input_map.values())]
        self._waiting = [part for part in self._waiting if part not in ready]
        # A cached answer comes at once, within `_start`: none of these may look as if it were the last.
        self._tickets.update({id(part.step): None for part in ready})
        for part in ready:
            if not self._ended:
                self._start(part)
        if not self._ended and not self._tickets:
            self.end(self._outputs())

    def _start(self, part: Part) -> None:
        step, key = part.step, id(part.step)
        inputs = {name: self._tensors[tensor] for name, tensor in step.input_map.items()}
        request = InferRequest(step.model, inputs, step.version, self._request.id, request_id=self._request.request_id)
        request.parameters = self._request.parameters
        request.sequence = copy(self._request.sequence)
        request.priority, request.timeout_us = self._request.priority, self._request.timeout_us
        try:
            ticket = part.model.infer(request, lambda result: self._stepped(step, result), None, part.held)
        except Exception as error:
            self.end(error)
            return
        if key in self._tickets:
            self._tickets[key] = ticket

    def _stepped(self, step: EnsembleStep, result: InferResponse | Exception) -> None:
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

    def _outputs(self) -> Outputs | Exception:
        names = [output.name for output in self._config.outputs]
        missing = [name for name in names if name not in self._tensors]
        if missing:
            return BackendFailed(f"ensemble '{self._config.name}': no step gave {', '.join(missing)}")
        return {name: self._tensors[name] for name in names}

    def end(self, answer: Outputs | Exception) -> None:
        """Steps still under way are cancelled: nobody needs them any more."""
        if self._ended:
            return
        self._ended = True
        for ticket in list(self._tickets.values()):
            if ticket is not None:
                ticket.cancel()
        self._finish(answer)


def circle(name: str, parts_of: Callable[[str], Iterable[str]], above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The way from an ensemble back to itself through the models of its steps; empty when there is none."""
    if name in above:
        return (*above[above.index(name) :], name)
    return next((found for part in parts_of(name) if (found := circle(part, parts_of, (*above, name)))), ())
