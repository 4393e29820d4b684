"""What configuration, settings and request say reaches what runs the model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.eventually import eventually_async
from tests.onnx_models import write_python
from tests.predictor.in_process_server import House, play, write_times
from tests.predictor.scheduling.instances import Echo

from pilotlight_predictor.backends.base import Device, LoadSpec
from pilotlight_predictor.core import backend_table
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor, TensorSpec
from pilotlight_predictor.models import loader
from pilotlight_predictor.protocols.v2.request_codec import decode_request
from pilotlight_predictor.scheduling.scheduler import Scheduler

TENSORS = """
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
PAIRED = TENSORS.replace("8", "1") + "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
# The first request, 1, waits until the file exists; the second runs meanwhile in the other instance.
SLOW_FIRST = """
import pathlib
import time


def predict(x):
    while x[0, 0] == 1 and not pathlib.Path({sign!r}).exists():
        time.sleep(0.001)
    return {{"y": x}}
"""
TELLING = """
import triton_python_backend_utils as pb_utils
import numpy


class TritonPythonModel:
    def execute(self, requests):
        texts = [numpy.array([[request.parameters()]], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", text)]) for text in texts]
"""


def ask(house: House, value: float, answers: list[float]) -> None:
    request = InferRequest("m", {"x": Tensor("FP32", np.array([[value]], "f4"))})
    house.registry.find("m", -1).infer(request, lambda _: answers.append(value))


@pytest.mark.parametrize(("ordering", "order"), [("false", [2, 1]), ("true", [1, 2])])
def test_a_model_that_preserves_ordering_answers_in_order_over_its_instances(
    tmp_path: Path, ordering: str, order: list[float]
) -> None:
    async def scene() -> None:
        config = f"{PAIRED} dynamic_batching {{ preserve_ordering: {ordering} }}"
        write_python(tmp_path / "models", "m", SLOW_FIRST.format(sign=str(tmp_path / "go on")), config)
        house, answers = await House(tmp_path / "models").start(), list[float]()
        runs = cast(Scheduler, house.registry.find("m").executor)
        ask(house, 1, answers)
        ask(house, 2, answers)
        await eventually_async(lambda: runs.executing == 1 and not runs.pending)
        assert answers == order[: ordering == "false"]
        (tmp_path / "go on").touch()
        await eventually_async(lambda: len(answers) == 2)
        assert answers == order

    play(scene())


def test_a_models_preferred_size_and_delay_make_its_batches(tmp_path: Path) -> None:
    async def scene() -> None:
        batching = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 600000000 }"
        write_times(tmp_path, "m", 2, TENSORS + batching)
        house, answers = await House(tmp_path).start(), list[float]()
        for value in (1, 2, 3):
            ask(house, value, answers)
        await eventually_async(lambda: house.registry.find("m", -1).executor.pending == 3)
        ask(house, 4, answers)
        await eventually_async(lambda: len(answers) == 4)
        (row,) = house.metrics.statistics()["model_stats"]
        assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in row["batch_stats"]] == [(4, 1)]

    play(scene())


def test_the_settings_of_a_backend_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LoadSpec] = []

    def load(spec: LoadSpec) -> Any:
        seen.append(spec)
        instance = Echo()
        instance.inputs = instance.outputs = (TensorSpec("x", "FP32", (-1, 1)),)
        return instance

    monkeypatch.setattr(backend_table, "module", lambda row: SimpleNamespace(load=load))
    monkeypatch.setattr(loader, "prepare", lambda row: None)
    monkeypatch.setattr(loader, "gpu_count", lambda: 4)

    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        pickles = {"w.pkl": "ab" * 32}
        model = {"precision": "fp16", "threads": 3, "device": "cuda:2", "trusted_pickles": pickles}
        await House(tmp_path, model=model).start()
        (spec,) = seen
        assert (spec.precision, spec.threads, spec.device) == ("fp16", 3, Device("cuda", 2))
        assert spec.trusted_pickles == pickles

    play(scene())


def test_a_requests_own_parameters_reach_the_model(tmp_path: Path) -> None:
    async def scene() -> None:
        config = """
        backend: "python" max_batch_size: 0
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "y" data_type: TYPE_STRING dims: [ 1, 1 ] } ]
        """
        write_python(tmp_path, "m", TELLING, config)
        house, answers = await House(tmp_path).start(), list[Any]()
        tensor = b'{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}'
        body = b'{"parameters": {"mine": "x"}, "inputs": [%b]}' % tensor
        house.registry.find("m", -1).infer(decode_request("m", -1, body, None), answers.append)
        await eventually_async(lambda: answers)
        assert answers[0].outputs["y"].array.item() == b'{"mine": "x"}'

    play(scene())
