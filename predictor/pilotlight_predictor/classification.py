"""The classification extension: an output's best classes as "value:index[:label]" instead of its numbers. Pure."""

from collections.abc import Sequence

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.tensors import Tensor, bf16_to_float


def classify(name: str, tensor: Tensor, count: int, labels: Sequence[str], batched: bool) -> Tensor:
    """The `count` largest of each row (of the whole tensor where the model does not batch), best first."""
    array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
    if array.dtype.kind not in "iuf":
        raise BadRequest(f"output '{name}' is {tensor.datatype}; classification needs numbers")
    rows = array.reshape(array.shape[0] if batched else 1, -1) if array.size else array.reshape(-1, 0)
    best = min(count, rows.shape[1])
    top = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :best]
    texts = np.empty(top.shape, dtype=object)
    for place, index in np.ndenumerate(top):
        texts[place] = _text(rows[place[0], index], int(index), labels)
    return Tensor("BYTES", texts.reshape((len(rows), best) if batched else (best,)))


def _text(value: np.generic, index: int, labels: Sequence[str]) -> bytes:
    number = f"{float(value):f}" if value.dtype.kind == "f" else str(int(value))
    label = labels[index] if index < len(labels) else ""
    return f"{number}:{index}:{label}".encode() if label else f"{number}:{index}".encode()
