"""A folder for the small models of a module, and the backend loaded from one of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.huggingface.backend import HuggingFaceInstance, load
from pilotlight_predictor.core.requests import InferRequest, RequestedOutput
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.repository.model_config import ModelConfig

Load = Callable[..., HuggingFaceInstance]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def load_folder(folder: Path, pickles: dict[str, str] | None = None, **parameters: str) -> HuggingFaceInstance:
    config = ModelConfig("tiny", parameters=parameters)
    return load(LoadSpec(config, 1, folder, folder.parent, trusted_pickles=pickles or {}))


def request(*outputs: str, **inputs: list[Any]) -> InferRequest:
    columns = {}
    for name, values in inputs.items():
        array = np.empty(len(values), dtype=object)
        array[:] = [value.encode() if isinstance(value, str) else value for value in values]
        columns[name] = Tensor("BYTES", array)
    return InferRequest("tiny", columns, outputs=tuple(map(RequestedOutput, outputs)))


def answers(instance: HuggingFaceInstance, *requests: InferRequest) -> list[dict[str, Any]]:
    """Outputs of each request of one batch, as lists."""
    return [
        {name: tensor.array.tolist() for name, tensor in answer.items()}
        for answer in instance.execute(requests)
        if not isinstance(answer, Exception)
    ]
