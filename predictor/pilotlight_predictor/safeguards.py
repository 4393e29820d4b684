"""Optional input limits of the operator: rejects NaN, infinities and long sequences. Pure.

Enabled by `safeguards.input_validation`, for valid requests of clients; tensors passed between the steps of an
ensemble are not checked.
"""

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.tensors import Shape, Tensor, bf16_to_float


def check_values(
    request: InferRequest, max_sequence_length: int, batched: bool, fixed: frozenset[str] = frozenset()
) -> None:
    """Raise BadRequest with the rejected input. `batched`: the first dimension is the batch.

    Inputs in `fixed` have the one length that the model accepts: their length is not checked.
    """
    for name, tensor in request.inputs.items():
        if name not in fixed:
            _check_length(name, sequence_length(tensor.array.shape, batched), max_sequence_length)
        if not _finite(tensor):
            raise BadRequest(
                f"input '{name}' has NaN or an infinity, which this server refuses (safeguards.input_validation)"
            )


def sequence_length(shape: Shape, batched: bool) -> int:
    """Return the sequence length: the last dimension of a vector or of rows of vectors. An image has none (0)."""
    return shape[-1] if len(shape) == 2 or (len(shape) == 1 and not batched) else 0


def _check_length(name: str, length: int, limit: int) -> None:
    if length > limit:
        raise BadRequest(
            f"input '{name}' has a sequence of {length}, at most {limit} are taken"
            " (safeguards.input_validation.max_sequence_length)"
        )


def _finite(tensor: Tensor) -> bool:
    array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
