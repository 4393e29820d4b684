"""Registry and control over repositories, put together as the server does, without HTTP in front."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.eventually import eventually_async
from tests.onnx_models import write_python

from pilotlight_predictor.config import Settings
from pilotlight_predictor.core.requests import NEWEST, InferRequest, InferResponse
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import LoadFailed, NotFound, NotReady
from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.models.sources import ModelFetcher, ModelSources
from pilotlight_predictor.protocols.example_request import decode_example
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.server.server_state import Lifecycle, ServerState

TIMES = """
INPUTS = {{"x": ("FP32", [-1, 1])}}
OUTPUTS = {{"y": ("FP32", [-1, 1])}}


def predict(x):
    return {{"y": x * {factor}}}
"""
BROKEN = "this is no Python\n"


def write_times(repository: Path, name: str, factor: float, config: str = "", version: int = 1) -> Path:
    """A model that multiplies by `factor`; a second call for the same version replaces it."""
    path = repository / name / str(version) / "model.py"
    if not path.exists():
        return write_python(repository, name, TIMES.format(factor=factor), config, version)
    replace_file(path, TIMES.format(factor=factor))
    return repository / name


def replace_file(path: Path, text: str) -> None:
    """As careful people do, so that a file is seen whole or not at all and never with its old inode."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)


def write_ensemble(repository: Path, name: str, *models: str) -> Path:
    """in → models one after the other → out."""
    tensors = ["in", *(f"t{number}" for number in range(1, len(models))), "out"]
    steps = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "{inlet}" value: "{source}" }}'
        f' output_map {{ key: "{outlet}" value: "{target}" }} }}'
        for model, source, target in zip(models, tensors, tensors[1:], strict=False)
        for inlet, outlet in [("in", "out") if model.startswith("ensemble") else ("x", "y")]
    )
    config = (
        'platform: "ensemble" max_batch_size: 32 input [ { name: "in" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        'output [ { name: "out" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        f"ensemble_scheduling {{ step [ {steps} ] }}"
    )
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    return repository / name


class House:
    """`model` and `performance` are settings; everything else is the server's own code."""

    def __init__(
        self,
        *repositories: Path,
        mode: str = "none",
        model: Mapping[str, Any] | None = None,
        performance: Mapping[str, Any] | None = None,
        server: Mapping[str, Any] | None = None,
    ) -> None:
        default = Settings()
        paths = tuple(str(repository) for repository in repositories)
        self.settings = replace(
            default,
            model=replace(
                default.model, **{"repositories": paths, "control_mode": mode, "device": "cpu", **(model or {})}
            ),
            performance=replace(default.performance, **(performance or {})),
            server=replace(default.server, **(server or {})),
        )
        bringing = ModelFetcher(self.settings.model.cache_dir, lambda progress: None, self.settings.model.pins)
        sources = ModelSources(self.settings, bringing.model, bringing.repository)
        self.server = Server(self.settings, Lifecycle(0.0, 0.0), sources, Metrics(), decode_example)
        self.registry, self.control, self.metrics = self.server.registry, self.server.control, self.server.metrics

    async def start(self) -> "House":
        self.server.lifecycle.move(ServerState.LOADING)
        try:
            await self.control.start()
        except LoadFailed as error:
            self.server.lifecycle.move(ServerState.FAILED, str(error))
            raise
        self.server.lifecycle.move(ServerState.READY)
        return self

    async def polled(self) -> None:
        """Two rounds: a change is acted upon when it was seen twice."""
        await self.control.poll()
        await self.control.poll()

    async def ask(self, model: str, value: float = 1.0, version: int = NEWEST, **inputs: Any) -> Any:
        """The one number that the model gives, or what went wrong."""
        name = "in" if model.startswith("ensemble") else "x"
        request = InferRequest(model, {name: Tensor("FP32", np.array([[value]], dtype="f4"))}, version, **inputs)
        answers: list[InferResponse | Exception] = []
        self.registry.find(model, version).infer(request, answers.append)
        await eventually_async(lambda: answers)
        answer = answers[0]
        return answer if isinstance(answer, Exception) else float(next(iter(answer.outputs.values())).array[0, 0])

    def states(self) -> dict[str, str]:
        return {_key(row): row["state"] for row in self.registry.index()}

    def reasons(self) -> dict[str, str]:
        return {_key(row): row["reason"] for row in self.registry.index() if row["reason"]}


async def absent(house: House, model: str, version: int = NEWEST) -> Exception | None:
    """Why the model cannot be asked; None where it answers."""
    try:
        await house.ask(model, version=version)
    except (NotFound, NotReady) as error:
        return error
    return None


def _key(row: Mapping[str, str]) -> str:
    return f"{row['name']}/{row['version']}" if "version" in row else row["name"]


def play(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)
