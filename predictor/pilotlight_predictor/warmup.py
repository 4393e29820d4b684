"""Warm-up requests: the configured samples, or zeros in the shapes of the model's inputs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.protocol.raw import decode_raw
from pilotlight_predictor.repository.model_config import ModelConfig, Warmup, WarmupInput
from pilotlight_predictor.tensors import NUMPY_TYPES, Shape, Tensor


def zero_request(config: ModelConfig) -> InferRequest:
    """Return a request of zeros: variable dimensions are 1, BYTES empty."""
    inputs = {
        t.name: _zeros(t.datatype, _shape(config, t.dims if t.reshape is None else t.reshape, 1)) for t in config.inputs
    }
    return InferRequest(config.name, inputs)


def configured_requests(config: ModelConfig, model_dir: Path) -> Iterator[InferRequest]:
    for warmup in config.warmups:
        inputs = {name: _input(config, warmup, name, spec, model_dir) for name, spec in warmup.inputs.items()}
        for _ in range(max(1, warmup.count)):
            yield InferRequest(config.name, dict(inputs))


def _input(config: ModelConfig, warmup: Warmup, name: str, spec: WarmupInput, model_dir: Path) -> Tensor:
    shape = _shape(config, spec.dims, max(1, warmup.batch_size))
    if spec.source == "zero":
        return _zeros(spec.datatype, shape)
    if spec.source == "random":
        return _random(spec.datatype, shape)
    path = model_dir / "warmup" / spec.filename
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadFailed(
            f"model_warmup '{warmup.name}': cannot read {path.name} for input '{name}': {error.strerror}"
        ) from None
    return decode_raw(f"warm-up input '{name}'", spec.datatype, shape, data)


def _shape(config: ModelConfig, dims: Shape, rows: int) -> Shape:
    fixed = tuple(1 if dim < 0 else dim for dim in dims)
    return (rows, *fixed) if config.max_batch_size else fixed


def _zeros(datatype: str, shape: Shape) -> Tensor:
    if datatype == "BYTES":
        empty = np.empty(shape, dtype=object)
        empty.fill(b"")
        return Tensor(datatype, empty)
    return Tensor(datatype, np.zeros(shape, NUMPY_TYPES[datatype]))


def _random(datatype: str, shape: Shape) -> Tensor:
    if datatype == "BYTES":
        return _zeros(datatype, shape)
    generator = np.random.default_rng(0)
    if datatype.startswith("FP"):
        return Tensor(datatype, generator.random(shape).astype(NUMPY_TYPES[datatype]))
    if datatype == "BF16":
        return Tensor(datatype, generator.integers(0, 0x3F80, shape).astype(NUMPY_TYPES[datatype]))
    return Tensor(datatype, generator.integers(0, 2, shape).astype(NUMPY_TYPES[datatype]))
