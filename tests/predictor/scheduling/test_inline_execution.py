"""A quick model with nothing else to do answers a request before anything else happens on the loop."""

import asyncio
from typing import Any

import numpy as np
import pytest
from tests.predictor.scheduling.instances import Asked, Echo, scheduler

from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.repository.model_config import DynamicBatching


def _request(value: float) -> InferRequest:
    return InferRequest("m", {"x": Tensor("FP32", np.array([[value]], "f4"))})


def test_the_answer_and_the_failure_of_a_quick_model_are_counted_as_ever() -> None:
    async def scene() -> None:
        quick = scheduler(Echo(quick=True), max_rows=4, trial_ns=1)
        answer = quick.inline_call()
        assert answer is not None
        outputs = answer(_request(2.0), 1)
        assert not isinstance(outputs, Exception)
        assert outputs["y"].array.tolist() == [[2.0]]
        assert isinstance(answer(_request(-1.0), 1), BackendFailed)
        stats = quick.stats
        assert (stats.success_count, stats.execution_count, stats.failures["BACKEND"]) == (1, 1, 1)
        assert (quick.executing, quick.inline_call() is not None) == (0, True)
        await quick.close()
        assert quick.inline_call() is None

    asyncio.run(scene())


def test_a_model_that_exits_answers_no_more() -> None:
    class Exiting(Echo):
        def run(self, inputs: Any) -> Any:
            raise SystemExit(3)

    async def scene() -> None:
        quick = scheduler(Exiting(quick=True), trial_ns=1)
        answer = quick.inline_call()
        assert answer is not None
        assert isinstance(answer(_request(1.0), 1), BackendFailed)
        assert (quick.alive, quick.inline_call()) == (False, None)
        await quick.close()

    asyncio.run(scene())


def test_who_waits_already_comes_first() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Echo(quick=True), max_rows=4, trial_ns=1))
        ask("first")
        assert ask.scheduler.inline_call() is None
        await ask.all()
        assert ask.scheduler.inline_call() is not None
        await ask.scheduler.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "fields",
    [
        {"trial_ns": 0},
        {"trial_ns": 1, "delay_us": 100},
        {"trial_ns": 1, "preserve_ordering": True},
        {"trial_ns": 1, "batching": DynamicBatching(priority_levels=2, default_priority_level=1)},
    ],
    ids=["not known to be quick", "batches are worth a wait", "answers keep an order", "others may come first"],
)
def test_requests_take_their_turn_where_the_model_says_so(fields: dict[str, Any]) -> None:
    async def scene() -> None:
        patient = scheduler(Echo(quick=True), max_rows=4, **fields)
        assert patient.inline_call() is None
        await patient.close()

    asyncio.run(scene())
