"""Many requests as one: inputs joined along the first dimension, outputs cut apart again. Pure."""

from collections.abc import Sequence

import numpy as np

from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.inference import InferRequest, Inputs, Outputs
from pilotlight_predictor.tensors import Tensor


def rows_of(inputs: Inputs) -> int:
    """The size of the batch dimension: that of the first input (all agree, see validation)."""
    for tensor in inputs.values():
        return int(tensor.array.shape[0])
    return 1


def merge(batch: Sequence[InferRequest]) -> tuple[Inputs, list[int]]:
    """One set of inputs for the whole batch, and how many rows each request brought."""
    return join([request.inputs for request in batch]), [rows_of(request.inputs) for request in batch]


def join(parts: Sequence[Outputs]) -> Outputs:
    """The rows of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: Tensor(tensor.datatype, np.concatenate([part[name].array for part in parts]))
        for name, tensor in parts[0].items()
    }


def split(outputs: Outputs, rows: Sequence[int]) -> list[Outputs]:
    """The inverse of merge: each request gets its own rows of every output, as views."""
    total = sum(rows)
    for name, tensor in outputs.items():
        if tensor.array.ndim == 0 or tensor.array.shape[0] != total:
            raise BackendFailed(
                f"output '{name}' has shape {list(tensor.array.shape)} for a batch of {total} rows: its first dimension"
                " is no batch dimension; set max_batch_size: 0 for this model"
            )
    answers, start = [], 0
    for count in rows:
        end = start + count
        answers.append({name: Tensor(t.datatype, t.array[start:end]) for name, t in outputs.items()})
        start = end
    return answers
