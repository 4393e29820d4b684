"""Between numpy arrays and torch tensors: types, BF16 by its bits, and pinned memory on the way to a GPU.

Used by torch.py and tensorrt.py for every batch; torch itself is imported by whoever calls first.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pilotlight_predictor.batch import merge, rows_of
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.inference import InferRequest, Inputs
from pilotlight_predictor.tensors import Array, Shape, Tensor
from pilotlight_predictor.weights.safetensors_file import TYPES

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.weights.moving import Block
    from pilotlight_predictor.weights.safetensors_file import Place

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

    found = as_declared(value, declared)
    datatype = _DATATYPES.get(str(found.dtype).removeprefix("torch."))
    if datatype is None:
        raise TypeError(f"an output of {found.dtype} has no V2 datatype; return one of {', '.join(_DATATYPES)}")
    if declared and datatype != declared:
        raise TypeError(f"an output is {datatype}, but the configuration says {declared}")
    if datatype == "BF16":
        return Tensor(datatype, found.view(torch.uint16).numpy())
    return Tensor(datatype, found.numpy())


def as_declared(value: Any, declared: str) -> "torch.Tensor":
    """A result as it is told, on the device where it is: floats in the declared type, rows one after the other."""
    import torch

    found = torch.as_tensor(value).detach()
    if declared in {"FP16", "BF16", "FP32", "FP64"} and found.is_floating_point():
        found = found.to(dtype_of(declared))
    return found.contiguous()


def adopt(blocks: "Sequence[tuple[Block, Mapping[str, Place]]]") -> "dict[str, torch.Tensor]":
    """Tensors of a safetensors file as they lie on the GPU: nothing is copied, and the last one frees the block."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for block, tensors in blocks:
        whole = torch.as_tensor(block, device=f"cuda:{block.context.index}")
        for name, place in tensors.items():
            if place.dtype not in TYPES:
                raise LoadFailed(f"tensor {name!r} is {place.dtype}, which torch has no type for")
            dtype = getattr(torch, TYPES[place.dtype][0])
            piece = whole[place.begin : place.end]
            aligned = piece if place.begin % dtype.itemsize == 0 else piece.clone()
            found[name] = aligned.view(dtype).view(place.shape)
    return found


class PinnedStaging:
    """One pinned buffer per input, grown and used again: valid because each batch ends with a synchronise."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def merge(self, batch: Sequence[InferRequest]) -> tuple[Inputs, Sequence[int]]:
        """As batch.merge, but rows go from the requests' bodies to the pinned buffer at once, where the result lies."""
        parts = [request.inputs for request in batch]
        if any(tensor.datatype != parts[0][name].datatype for part in parts for name, tensor in part.items()):
            return merge(batch)
        rows = [rows_of(part) for part in parts]
        return {name: self._joined(name, [part[name] for part in parts], sum(rows)) for name in parts[0]}, rows

    def to_device(self, name: str, tensor: Tensor, device: "torch.device") -> "torch.Tensor":
        return self.staged(name, tensor).to(device, non_blocking=True)

    def staged(self, name: str, tensor: Tensor) -> "torch.Tensor":
        """The tensor in pinned memory: where `merge` put it, or copied there."""
        import torch

        check_numeric(name, tensor)
        array, dtype = tensor.array, dtype_of(tensor.datatype)
        if not array.size:
            return torch.empty(array.shape, dtype=dtype)
        place = self._place(name, array)
        if place is None:
            place = self._buffer(name, array.nbytes)[: array.nbytes]
            _view(place.numpy(), array.dtype, array.shape)[...] = array
        return place.view(dtype).view(array.shape)

    def _joined(self, name: str, parts: Sequence[Tensor], rows: int) -> Tensor:
        check_numeric(name, parts[0])
        first = parts[0].array
        shape = (rows, *first.shape[1:])
        pinned = self._buffer(name, prod(shape) * first.itemsize)[: prod(shape) * first.itemsize]
        joined = _view(pinned.numpy(), first.dtype, shape)
        np.concatenate([part.array for part in parts], out=joined)
        return Tensor(parts[0].datatype, joined)

    def _place(self, name: str, array: Array) -> "torch.Tensor | None":
        """The bytes of the buffer that the array is a view of, if it is one."""
        buffer = self._buffers.get(name)
        if buffer is None or not array.flags.c_contiguous:
            return None
        offset = array.__array_interface__["data"][0] - buffer.data_ptr()
        return buffer[offset : offset + array.nbytes] if 0 <= offset <= buffer.numel() - array.nbytes else None

    def _buffer(self, name: str, size: int) -> "torch.Tensor":
        import torch

        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            pinned = torch.cuda.is_available()  # without a GPU there is nothing to pin memory for
            buffer = self._buffers[name] = torch.empty(max(size, 4096), dtype=torch.uint8, pin_memory=pinned)
        return buffer


def to_host(values: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Begins to copy to pinned memory, which is read after a synchronise.

    Each batch takes memory of its own, which torch keeps for the next one as soon as the last answer is sent: so
    nothing is copied again, and no answer is written over.
    """
    import torch

    return {
        name: torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda).copy_(value, non_blocking=True)
        for name, value in values.items()
    }


def _view(raw: Array, dtype: "np.dtype[Any]", shape: Shape) -> Array:
    return raw.view(dtype).reshape(shape)
