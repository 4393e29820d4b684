from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor, tensor
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig


@pytest.fixture
def config() -> Callable[..., ModelConfig]:
    """config({"x": ("FP32", (4,))}, {"y": ("FP32", (2,))}, max_batch_size=8)"""

    def make(inputs: dict[str, Any] | None = None, outputs: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
        return ModelConfig(
            name=fields.pop("name", "m"),
            inputs=tuple(TensorConfig(name, *kind) for name, kind in (inputs or {}).items()),
            outputs=tuple(TensorConfig(name, *kind) for name, kind in (outputs or {}).items()),
            **fields,
        )

    return make


@pytest.fixture
def spec() -> Callable[..., LoadSpec]:
    def make(path: Path, config: ModelConfig | None = None, **fields: Any) -> LoadSpec:
        return LoadSpec(config or ModelConfig("m"), fields.pop("version", 1), path, path.parent, **fields)

    return make


@pytest.fixture
def ask() -> Callable[..., InferRequest]:
    """ask(x=array): one request; a Tensor is taken as it is."""

    def make(**inputs: Any) -> InferRequest:
        wrapped = {name: v if isinstance(v, Tensor) else tensor(np.asarray(v)) for name, v in inputs.items()}
        return InferRequest("m", wrapped)

    return make


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Path]:
    """source(text, **neighbours): a model.py in a directory of its own, with the files beside it."""
    made = iter(range(100))

    def make(text: str, **neighbours: str) -> Path:
        folder = tmp_path / f"model{next(made)}" / "1"
        folder.mkdir(parents=True)
        for name, content in {"model": text, **neighbours}.items():
            (folder / f"{name}.py").write_text(dedent(content))
        return folder / "model.py"

    return make


@pytest.fixture(scope="module")
def data() -> Any:
    from sklearn.datasets import load_iris

    table = load_iris(as_frame=True)
    return SimpleNamespace(x=table.data.to_numpy(), y=table.target.to_numpy(), frame=table.data)


@pytest.fixture(scope="module")
def estimator(data: Any) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=300).fit(data.x, data.y)
