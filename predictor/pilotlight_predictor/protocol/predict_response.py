"""Response body of /predict: predictions, model_version, latency_ms. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.protocol.predict_request import PredictPart
from pilotlight_predictor.tensors import Tensor, bf16_to_float


def document(
    parts: Sequence[PredictPart], responses: Sequence[InferResponse], *, batch: bool, version: str, seconds: float
) -> dict[str, Any]:
    """Return the body with the predictions of the first output: a list for `inputs`, a list of lists for `batch`."""
    rows = [row for part, response in zip(parts, responses, strict=True) for row in _rows(part, response)]
    return {
        "predictions": rows if batch else rows[0],
        "model_version": version,
        "latency_ms": round(seconds * 1000, 3),
    }


def _rows(part: PredictPart, response: InferResponse) -> Iterator[Any]:
    """Yield the prediction of each row; an output without a row dimension belongs to all rows."""
    array = _plain(next(iter(response.outputs.values())))
    split = part.lead and array.ndim > 0 and len(array) == part.rows
    for index in range(part.rows):
        row = np.atleast_1d(array[index] if split else array)
        yield np.ascontiguousarray(row) if row.dtype != object else row.tolist()


def _plain(tensor: Tensor) -> Any:
    """Return the array for JSON: BF16 as floats, BYTES as text."""
    if tensor.datatype == "BF16":
        return bf16_to_float(tensor.array)
    if tensor.datatype == "BYTES":
        texts = [item.decode("utf-8", "replace") for item in tensor.array.ravel()]
        return np.array(texts, dtype=object).reshape(tensor.array.shape)
    return tensor.array
