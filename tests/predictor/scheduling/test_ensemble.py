"""Graphs of models as one: what runs, what fails, what is cancelled, and that no request loses a model on its way."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.eventually import eventually_async
from tests.predictor.scheduling.instances import PATIENCE_S, scheduler

from pilotlight_predictor.backends.base import TensorInstance
from pilotlight_predictor.core.requests import InferRequest, InferResponse, Inputs, Outputs
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BackendFailed, Cancelled, NotFound, NotReady
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.response_cache import ResponseCache
from pilotlight_predictor.repository.model_config import EnsembleStep, ModelConfig, TensorConfig
from pilotlight_predictor.scheduling.ensemble import Ensemble, find_cycle


class Sums(TensorInstance):
    """y = all inputs added up, plus `bias`."""

    def __init__(self, bias: float = 0.0) -> None:
        self._bias = bias

    def run(self, inputs: Inputs) -> Outputs:
        total = sum(tensor.array for tensor in inputs.values()) + np.float32(self._bias)
        return {"y": Tensor("FP32", np.asarray(total, dtype="f4"))}


class Models:
    """A registry of a few lines: what is not in `served` cannot be found."""

    def __init__(self) -> None:
        self.served: dict[str, ModelVersion] = {}

    def find(self, name: str, version: int = -1) -> ModelVersion:
        if name not in self.served:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.served[name]

    def add(self, name: str, instance: TensorInstance, *inputs: str, cache: ResponseCache | None = None) -> None:
        config = ModelConfig(name, inputs=tensors(*inputs), outputs=tensors("y"), response_cache=cache is not None)
        executor = scheduler(instance)
        self.served[name] = ModelVersion(config, 1, executor, executor.stats, ((), ()), {}, cache)

    def ensemble(self, name: str, inputs: list[str], outputs: list[str], *steps: EnsembleStep) -> None:
        config = ModelConfig(name, inputs=tensors(*inputs), outputs=tensors(*outputs), ensemble=steps)
        stats = ModelStats(name, 1)
        self.served[name] = ModelVersion(config, 1, Ensemble(config, self.find, stats), stats, ((), ()), {})

    def ask(self, name: str, done: Callable[[Any], None], **values: float) -> Any:
        inputs = {key: Tensor("FP32", np.array([value], dtype="f4")) for key, value in values.items()}
        return self.find(name).infer(InferRequest(name, inputs), done)

    async def answer(self, model: str, **values: float) -> Any:
        answers: list[InferResponse | Exception] = []
        self.ask(model, answers.append, **values)
        await eventually_async(lambda: answers)
        if isinstance(answers[0], Exception):
            return answers[0]
        return {name: float(tensor.array[0]) for name, tensor in answers[0].outputs.items()}


def tensors(*names: str) -> tuple[TensorConfig, ...]:
    return tuple(TensorConfig(name, "FP32", (1,)) for name in names)


def step(model: str, inputs: dict[str, str], output: str) -> EnsembleStep:
    return EnsembleStep(model, -1, inputs, {"y": output})


def diamond(models: Models, join: TensorInstance | None = None, cache: ResponseCache | None = None) -> None:
    models.add("first", Sums(1), "x")
    models.add("left", Sums(10), "x", cache=cache)
    models.add("right", Sums(100), "x", cache=cache)
    models.add("join", join or Sums(), "a", "b")
    models.ensemble(
        "diamond", ["in"], ["out"],
        step("join", {"a": "l", "b": "r"}, "out"),
        step("left", {"x": "f"}, "l"), step("right", {"x": "f"}, "r"), step("first", {"x": "in"}, "f"),
    )  # fmt: skip


def test_a_diamond_runs_each_step_when_its_tensors_are_there() -> None:
    async def scene() -> None:
        models = Models()
        diamond(models)
        assert await models.answer("diamond", **{"in": 5}) == {"out": 122}
        assert [models.served[name].stats.execution_count for name in ("first", "left", "right", "join")] == [1] * 4

    asyncio.run(scene())


def test_steps_whose_answers_are_cached_do_not_end_the_run_early() -> None:
    """A cached answer comes at once, before the step beside it has begun."""

    async def scene() -> None:
        models = Models()
        diamond(models, cache=ResponseCache(1 << 20))
        for _ in range(2):
            assert await models.answer("diamond", **{"in": 5}) == {"out": 122}
        assert models.served["left"].stats.cache_hit_count == 1

    asyncio.run(scene())


class Failing(TensorInstance):
    def run(self, inputs: Inputs) -> Outputs:
        raise ValueError("secret")


def test_a_step_that_fails_fails_the_request_and_the_steps_after_it_never_run() -> None:
    async def scene() -> None:
        models = Models()
        diamond(models)
        models.add("left", Failing(), "x")
        answer = await models.answer("diamond", **{"in": 5})
        assert isinstance(answer, BackendFailed)
        assert "secret" not in str(answer)
        assert models.served["join"].stats.execution_count == 0
        assert models.served["diamond"].stats.failures["BACKEND"] == 1
        await asyncio.wait_for(models.served["diamond"].executor.close(), 10)  # nothing is in flight

    asyncio.run(scene())


class Held(Sums):
    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate, self.entered = gate, threading.Event()

    def run(self, inputs: Inputs) -> Outputs:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        return super().run(inputs)


def test_a_client_that_leaves_cancels_the_step_under_way_and_those_to_come() -> None:
    async def scene() -> None:
        models, gate = Models(), threading.Event()
        diamond(models)
        first = Held(gate)
        models.add("first", first, "x")
        answers: list[Any] = []
        ticket = models.ask("diamond", answers.append, **{"in": 5})
        await eventually_async(first.entered.is_set)
        ticket.cancel()
        assert isinstance(answers[0], Cancelled)
        gate.set()
        await eventually_async(lambda: models.served["first"].stats.execution_count)
        await asyncio.sleep(0.01)
        assert models.served["left"].stats.execution_count == 0
        assert len(answers) == 1

    asyncio.run(scene())


def test_models_unloaded_on_its_way_still_serve_a_request_that_was_accepted() -> None:
    async def scene() -> None:
        models, gate = Models(), threading.Event()
        diamond(models)
        first = Held(gate)
        models.add("first", first, "x")
        models.ensemble("outer", ["in"], ["out"], EnsembleStep("diamond", -1, {"in": "in"}, {"out": "out"}))
        answers: list[Any] = []
        models.ask("outer", answers.append, **{"in": 5})
        await eventually_async(first.entered.is_set)
        closing = [asyncio.ensure_future(served.executor.close()) for served in models.served.values()]
        models.served.clear()
        await asyncio.sleep(0.01)
        gate.set()
        await eventually_async(lambda: answers)
        assert not isinstance(answers[0], Exception), answers[0]
        await asyncio.wait_for(asyncio.gather(*closing), PATIENCE_S)

    asyncio.run(scene())


def test_an_ensemble_with_a_missing_or_dead_model_is_not_ready_and_says_which() -> None:
    async def scene() -> None:
        models = Models()
        diamond(models)
        ensemble = models.served["diamond"].executor
        assert ensemble.alive
        del models.served["right"]
        assert "its model 'right' is not ready" in ensemble.problem
        with pytest.raises(NotReady, match=r"ensemble 'diamond' cannot run.*'right'"):
            models.ask("diamond", lambda answer: None, **{"in": 5})
        left = models.served["left"].executor
        await asyncio.wait_for(left.close(), PATIENCE_S)  # the attempt holds nothing

    asyncio.run(scene())


def test_ensembles_may_nest() -> None:
    async def scene() -> None:
        models = Models()
        diamond(models)
        models.ensemble(
            "outer", ["in"], ["out"],
            EnsembleStep("diamond", -1, {"in": "in"}, {"out": "middle"}),
            EnsembleStep("diamond", -1, {"in": "middle"}, {"out": "out"}),
        )  # fmt: skip
        assert await models.answer("outer", **{"in": 0}) == {"out": 2 * 112 + 112}
        del models.served["right"]
        assert "'diamond' is not ready: its model 'right'" in models.served["outer"].executor.problem

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"a": ["b", "c"], "b": ["c"]}, ()),
        ({"a": ["a"]}, ("a", "a")),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, ("a", "b", "c", "a")),
        ({"a": ["b"], "b": ["b"]}, ("b", "b")),
    ],
)
def test_a_circle_is_found_and_told_as_a_way(parts: dict[str, list[str]], expected: tuple[str, ...]) -> None:
    assert find_cycle("a", lambda name: parts.get(name, [])) == expected
