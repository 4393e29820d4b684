"""Classification extension: an output's best classes as "value:index[:label]" instead of its numbers. Pure."""

from collections.abc import Sequence

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.tensors import Array, Tensor, bf16_to_float


def classify(name: str, tensor: Tensor, count: int, labels: Sequence[str], batched: bool) -> Tensor:
    """Return the `count` largest values of each row as strings."""
    rows, top = ranked(name, tensor, count, batched)
    texts = np.empty(top.shape, dtype=object)
    for position, index in np.ndenumerate(top):
        texts[position] = _text(rows[position[0], index], int(index), labels)
    return Tensor("BYTES", texts if batched else texts.reshape(-1))


def ranked(name: str, tensor: Tensor, count: int, batched: bool) -> tuple[Array, Array]:
    """Return the rows (one if the model does not batch) and the indices of each row's `count` largest, best first."""
    array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
    if array.dtype.kind not in "iuf":
        raise BadRequest(f"output '{name}' is {tensor.datatype}; classification needs numbers")
    lead = array.shape[0] if batched else 1
    rows = array.reshape((lead, -1) if array.size else (lead, 0))
    best = min(count, rows.shape[1])
    top = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :best]
    return rows, top


def _text(value: np.generic, index: int, labels: Sequence[str]) -> bytes:
    number = f"{float(value):f}" if value.dtype.kind == "f" else str(int(value))
    label = labels[index] if index < len(labels) else ""
    return f"{number}:{index}:{label}".encode() if label else f"{number}:{index}".encode()
