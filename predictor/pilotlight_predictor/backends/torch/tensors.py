"""Conversion between numpy arrays and torch tensors: dtypes, BF16 by its bits, pinned staging, recovery from OOM.

Used by the torch and TensorRT backends for every batch; torch is imported at the first call.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pilotlight_predictor.core.batch import join, merge, split
from pilotlight_predictor.core.requests import InferRequest, Inputs, Outputs
from pilotlight_predictor.core.tensors import Array, Tensor
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed
from pilotlight_predictor.gpu.cuda_driver import SharedMemory, context_of
from pilotlight_predictor.gpu.safetensors_header import TYPES

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.gpu.safetensors_header import TensorInfo
    from pilotlight_predictor.gpu.safetensors_upload import Block

TORCH_NAMES: Final = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BF16": "bfloat16",
}  # fmt: skip
_DATATYPES: Final = {name: datatype for datatype, name in TORCH_NAMES.items()}
Run = Callable[[Inputs], Outputs]
PRECISIONS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def dtype_of(datatype: str) -> "torch.dtype":
    import torch

    return getattr(torch, TORCH_NAMES[datatype])


def to_torch(name: str, tensor: Tensor) -> "torch.Tensor":
    """CPU tensor without a copy, unless the memory is read-only, unaligned or strided: a model may write to it."""
    import torch

    check_numeric(name, tensor)
    array = np.require(tensor.array, requirements=["C", "A", "W"])
    value = torch.from_numpy(array)
    return value.view(torch.bfloat16) if tensor.datatype == "BF16" else value


def check_numeric(name: str, tensor: Tensor) -> None:
    if tensor.datatype not in TORCH_NAMES:
        raise BadRequest(f"input {name!r} is {tensor.datatype}, but a torch model takes numbers only")


def from_torch(value: Any, declared: str = "") -> Tensor:
    """Convert a CPU tensor or plain number, floats to the declared type. Raises TypeError if the types differ."""
    import torch

    result = to_declared_type(value, declared)
    datatype = _DATATYPES.get(str(result.dtype).removeprefix("torch."))
    if datatype is None:
        raise TypeError(f"an output of {result.dtype} has no V2 datatype; return one of {', '.join(_DATATYPES)}")
    if declared and datatype != declared:
        raise TypeError(f"an output is {datatype}, but the configuration has {declared}")
    return Tensor(datatype, (result.view(torch.uint16) if datatype == "BF16" else result).numpy())


def to_declared_type(value: Any, declared: str) -> "torch.Tensor":
    """Convert floats to the declared type and make the result contiguous, on its device."""
    import torch

    result = torch.as_tensor(value).detach()
    if declared in {"FP16", "BF16", "FP32", "FP64"} and result.is_floating_point():
        result = result.to(dtype_of(declared))
    return result.contiguous()


def device_tensors(blocks: "Sequence[tuple[Block, Mapping[str, TensorInfo]]]") -> "dict[str, torch.Tensor]":
    """Tensors over blocks of safetensors data on the GPU, without a copy; the last one frees its block."""
    import torch

    result: dict[str, torch.Tensor] = {}
    for block, tensors in blocks:
        whole = torch.as_tensor(block, device=f"cuda:{block.context.index}")
        for name, info in tensors.items():
            if info.dtype not in TYPES:
                raise LoadFailed(f"tensor {name!r} is {info.dtype}, which torch has no type for")
            dtype = getattr(torch, TYPES[info.dtype][0])
            data = whole[info.begin : info.end]
            aligned = data if info.begin % dtype.itemsize == 0 else data.clone()
            result[name] = aligned.view(dtype).view(info.shape)
    return result


def pinned_pieces(tensors: Sequence[Tensor], device: "torch.device") -> list[tuple[int, int]]:
    """Return address and size of each tensor, if all have rows of one kind and lie in pinned memory of fronts."""
    pieces, kind = [], (tensors[0].datatype, tensors[0].array.shape[1:])
    for datatype, array in tensors:
        base = array.base
        while isinstance(base, np.ndarray):
            base = base.base
        memory, address = getattr(base, "obj", None), array.__array_interface__["data"][0]
        if not isinstance(memory, SharedMemory) or (datatype, array.shape[1:]) != kind or not array.flags.c_contiguous:
            return []
        if not memory.pinned(address, array.nbytes, context_of(device.index)):
            return []
        pieces.append((address, array.nbytes))
    return pieces


class PinnedStaging:
    """One pinned buffer per input, grown and reused; safe because each batch ends with a synchronise."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def merge(self, batch: Sequence[InferRequest], rows: int) -> Inputs:
        """As core.batch.merge, but copy rows from the requests directly to the pinned buffers."""
        parts = [request.inputs for request in batch]
        if any(tensor.datatype != parts[0][name].datatype for part in parts for name, tensor in part.items()):
            return merge(batch)[0]
        joined = {}
        for name, (datatype, first) in parts[0].items():
            check_numeric(name, parts[0][name])
            shape = (rows, *first.shape[1:])
            pinned = self._buffer(name, prod(shape) * first.itemsize)[: prod(shape) * first.itemsize]
            place = pinned.numpy().view(first.dtype).reshape(shape)
            joined[name] = Tensor(datatype, np.concatenate([part[name].array for part in parts], out=place))
        return joined

    def to_device(self, name: str, tensor: Tensor, device: "torch.device") -> "torch.Tensor":
        return self.staged(name, tensor).to(device, non_blocking=True)

    def staged(self, name: str, tensor: Tensor) -> "torch.Tensor":
        """The tensor in pinned memory: where `merge` wrote it, else copied there."""
        import torch

        check_numeric(name, tensor)
        array, dtype = tensor.array, dtype_of(tensor.datatype)
        if not array.size:
            return torch.empty(array.shape, dtype=dtype)
        data = self._buffer_of(name, array)
        if data is None:
            data = self._buffer(name, array.nbytes)[: array.nbytes]
            data.numpy().view(array.dtype).reshape(array.shape)[...] = array
        return data.view(dtype).view(array.shape)

    def _buffer_of(self, name: str, array: Array) -> "torch.Tensor | None":
        """Bytes of the buffer that the array is a view of; None if it is not one."""
        buffer = self._buffers.get(name)
        if buffer is None or not array.flags.c_contiguous:
            return None
        offset = array.__array_interface__["data"][0] - buffer.data_ptr()
        return buffer[offset : offset + array.nbytes] if 0 <= offset <= buffer.numel() - array.nbytes else None

    def _buffer(self, name: str, size: int) -> "torch.Tensor":
        import torch

        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            pinned = torch.cuda.is_available()  # pinning needs a GPU
            buffer = self._buffers[name] = torch.empty(max(size, 4096), dtype=torch.uint8, pin_memory=pinned)
        return buffer


def to_host(values: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Start copies to pinned memory, to be read after a synchronise.

    Each batch has its own memory, which torch's allocator reuses after the last response is sent, so that responses
    need no further copy and are never overwritten.
    """
    import torch

    return {
        name: torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda).copy_(value, non_blocking=True)
        for name, value in values.items()
    }


class OutOfDeviceMemory(BackendFailed):
    """Neither the batch nor its halves fit; the text names the setting to change."""


def run_or_halve(run: Run, inputs: Inputs, *, model: str, batched: bool) -> Outputs:
    """Return `run(inputs)`; if the GPU is out of memory, run each half, or the whole if it cannot be split."""
    import torch

    try:
        return run(inputs)
    except torch.OutOfMemoryError:
        pass  # the traceback's frames reference the tensors: free the cache only after it is released
    torch.cuda.empty_cache()
    parts = halves(inputs) if batched else [inputs]
    try:
        return join([run(part) for part in parts])
    except torch.OutOfMemoryError as again:
        reason = str(again)
    torch.cuda.empty_cache()
    shapes = ", ".join(f"{name} {list(tensor.array.shape)}" for name, tensor in inputs.items())
    tried = "in two halves too" if len(parts) == 2 else "twice"
    raise OutOfDeviceMemory(
        f"model {model!r} ran out of device memory {tried} ({shapes}): lower max_batch_size in its configuration, "
        f"or its instance_group count; runtime error: {reason}"
    )


def halves(inputs: Inputs) -> list[Inputs]:
    """Split a batch into two parts; one part for a single row or if the inputs differ in rows."""
    rows = {tensor.array.shape[0] if tensor.array.ndim else 0 for tensor in inputs.values()}
    size = rows.pop() if len(rows) == 1 else 1
    if size < 2:
        return [inputs]
    middle = (size + 1) // 2
    return list(split(inputs, [middle, size - middle]))
