"""A model's answers → the document of /predict: predictions, model_version, latency_ms. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.protocol.predict_request import Part
from pilotlight_predictor.tensors import Tensor, bf16_to_float


def document(
    asked: Sequence[Part], answers: Sequence[InferResponse], *, batch: bool, version: str, seconds: float
) -> dict[str, Any]:
    """Predictions are those of the first output: a list for one list of inputs, a list of them for a batch."""
    rows = [row for part, answer in zip(asked, answers, strict=True) for row in _rows(part, answer)]
    return {
        "predictions": rows if batch else rows[0],
        "model_version": version,
        "latency_ms": round(seconds * 1000, 3),
    }


def _rows(part: Part, answer: InferResponse) -> Iterator[Any]:
    """The answer to each row; what a model gives without a dimension of rows belongs to all that it was asked."""
    array = _plain(next(iter(answer.outputs.values())))
    split = part.lead and array.ndim > 0 and len(array) == part.rows
    for index in range(part.rows):
        row = np.atleast_1d(array[index] if split else array)
        yield np.ascontiguousarray(row) if row.dtype != object else row.tolist()


def _plain(tensor: Tensor) -> Any:
    """As JSON has it: BF16 as floats, BYTES as text."""
    if tensor.datatype == "BF16":
        return bf16_to_float(tensor.array)
    if tensor.datatype == "BYTES":
        texts = [item.decode("utf-8", "replace") for item in tensor.array.ravel()]
        return np.array(texts, dtype=object).reshape(tensor.array.shape)
    return tensor.array
