"""Between numpy arrays and torch tensors: types, BF16 by its bits, and pinned memory on the way to a GPU.

Used by torch.py and tensorrt.py for every batch; torch itself is imported by whoever calls first.
"""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.tensors import Array, Tensor

if TYPE_CHECKING:
    import torch

TORCH_NAMES: Final = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
}
_DATATYPES: Final = {name: datatype for datatype, name in TORCH_NAMES.items()}
PRECISIONS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def dtype_of(datatype: str) -> "torch.dtype":
    import torch

    found: torch.dtype = getattr(torch, TORCH_NAMES[datatype])
    return found


def to_torch(name: str, tensor: Tensor) -> "torch.Tensor":
    """On the CPU and without a copy, unless the memory is read-only, unaligned or strided: a model may write to it."""
    import torch

    check_numeric(name, tensor)
    array = np.require(tensor.array, requirements=["C", "A", "W"])
    found = torch.from_numpy(array)
    return found.view(torch.bfloat16) if tensor.datatype == "BF16" else found


def check_numeric(name: str, tensor: Tensor) -> None:
    if tensor.datatype not in TORCH_NAMES:
        raise BadRequest(f"input {name!r} is {tensor.datatype}, but a torch model takes numbers only")


def from_torch(value: Any, declared: str = "") -> Tensor:
    """A tensor on the CPU (or a plain number) → ours, floats in the declared floating type."""
    import torch

    found = torch.as_tensor(value).detach()
    if declared in {"FP16", "BF16", "FP32", "FP64"} and found.is_floating_point():
        found = found.to(dtype_of(declared))
    found = found.contiguous()
    datatype = _DATATYPES.get(str(found.dtype).removeprefix("torch."))
    if datatype is None:
        raise TypeError(f"an output of {found.dtype} has no V2 datatype; return one of {', '.join(_DATATYPES)}")
    if declared and datatype != declared:
        raise TypeError(f"an output is {datatype}, but the configuration says {declared}")
    if datatype == "BF16":
        return Tensor(datatype, found.view(torch.uint16).numpy())
    return Tensor(datatype, found.numpy())


class PinnedStaging:
    """One pinned buffer per input, grown and used again: valid because each batch ends with a synchronise."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def to_device(self, name: str, tensor: Tensor, device: "torch.device") -> "torch.Tensor":
        import torch

        check_numeric(name, tensor)
        array = tensor.array
        pinned = self._buffer(name, array.nbytes)[: array.nbytes]
        _view(pinned.numpy(), array)[...] = array
        typed = (
            pinned.view(dtype_of(tensor.datatype)) if array.size else torch.empty(0, dtype=dtype_of(tensor.datatype))
        )
        return typed.view(array.shape).to(device, non_blocking=True)

    def _buffer(self, name: str, size: int) -> "torch.Tensor":
        import torch

        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(max(size, 4096), dtype=torch.uint8, pin_memory=True)
        return buffer


def _view(raw: Array, like: Array) -> Array:
    return raw.view(like.dtype).reshape(like.shape)
