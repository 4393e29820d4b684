"""Requests to backends of tables, and the files of their models."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.core.requests import InferRequest, RequestedOutput
from pilotlight_predictor.core.tensors import tensor
from pilotlight_predictor.repository.model_config import ModelConfig

ROW = np.array([[5.1, 3.5, 1.4, 0.2]])


def pinned(path: Path, **fields: Any) -> LoadSpec:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return LoadSpec(ModelConfig("m"), 1, path, path.parent, trusted_pickles={path.name: digest}, **fields)


def dumped(path: Path, model: Any) -> LoadSpec:
    import joblib

    joblib.dump(model, path)
    return pinned(path)


def request(*outputs: str, **inputs: Any) -> InferRequest:
    tensors = {name: tensor(np.asarray(value)) for name, value in inputs.items()}
    return InferRequest("m", tensors, outputs=tuple(RequestedOutput(name) for name in outputs))


def answer(instance: Any, *outputs: str, **inputs: Any) -> dict[str, Any]:
    (reply,) = instance.execute([request(*outputs, **inputs)])
    return {name: value.array.tolist() for name, value in reply.items()}


def specs(instance: Any) -> tuple[list[Any], list[Any]]:
    return [tuple(s)[:3] for s in instance.inputs], [tuple(s)[:3] for s in instance.outputs]
