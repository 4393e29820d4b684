"""What an operator may refuse though the model would take it: NaN, infinities, long sequences. Pure.

Off unless `safeguards.input_validation` is set; then `ServedVersion.infer` lets each request of every dialect through
here once it fits the model. What an ensemble passes from step to step is no client's, and is not looked at.
"""

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.tensors import Shape, Tensor, bf16_to_float


def check_values(
    request: InferRequest, max_sequence_length: int, batched: bool, fixed: frozenset[str] = frozenset()
) -> None:
    """Raises BadRequest with the input that is refused. `batched`: the first dimension is that of the batch.

    Inputs in `fixed` have one length only, which the model itself demands.
    """
    for name, tensor in request.inputs.items():
        if name not in fixed:
            _check_length(name, sequence_length(tensor.array.shape, batched), max_sequence_length)
        if not _finite(tensor):
            raise BadRequest(
                f"input '{name}' has NaN or an infinity, which this server refuses (safeguards.input_validation)"
            )


def sequence_length(shape: Shape, batched: bool) -> int:
    """A sequence is the last dimension of one or of rows of them: an image [3, 640, 640] holds none."""
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
