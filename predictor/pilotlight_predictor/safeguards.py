"""What an operator may refuse though the model would take it: NaN, infinities, long sequences. Pure.

Off unless `safeguards.input_validation` is set; then each request of every dialect passes here before it is queued.
"""

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.tensors import Shape, Tensor, bf16_to_float


def check_values(request: InferRequest, max_sequence_length: int, batched: bool) -> None:
    """Raises BadRequest with the input that is refused. A batch may have any number of rows."""
    for name, tensor in request.inputs.items():
        _check_length(name, tensor.array.shape[1 if batched else 0 :], max_sequence_length)
        if not _finite(tensor):
            raise BadRequest(
                f"input '{name}' has NaN or an infinity, which this server refuses (safeguards.input_validation)"
            )


def _check_length(name: str, shape: Shape, limit: int) -> None:
    if max(shape, default=0) > limit:
        raise BadRequest(
            f"input '{name}' has a sequence of {max(shape)}, at most {limit} are taken"
            " (safeguards.input_validation.max_sequence_length)"
        )


def _finite(tensor: Tensor) -> bool:
    array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
