"""Inputs, outputs and weights of a compiled model, in host memory or on one GPU."""

import ctypes
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from pilotlight_predictor.backends.torch.aot.libtorch import StoredTensor
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Array, Shape
from pilotlight_predictor.gpu.cuda_driver import Context
from pilotlight_predictor.gpu.safetensors_header import TensorInfo, read_header, weight_files
from pilotlight_predictor.gpu.safetensors_upload import Block, PinnedBuffer, WeightTransfer

ALIGNED: Final = 16


class Memory(Protocol):
    """Memory for inputs and outputs of one instance; the model runs on `stream`."""

    stream: int

    def stage_input(self, name: str, array: Array) -> int: ...
    def read_output(self, address: int, datatype: str, shape: Shape, strides: Shape) -> Array: ...
    def synchronize(self) -> None:
        """Wait until the model's run is done."""


class HostMemory:
    """Host memory: inputs are passed without a copy; outputs are copied, since their handles are deleted afterwards."""

    stream = 0

    def stage_input(self, name: str, array: Array) -> int:
        return int(array.ctypes.data)

    def read_output(self, address: int, datatype: str, shape: Shape, strides: Shape) -> Array:
        items = span(shape, strides)
        if not items:
            return np.empty(shape, NUMPY_TYPES[datatype])
        raw = memoryview((ctypes.c_char * (items * NUMPY_TYPES[datatype].itemsize)).from_address(address)).cast("B")
        return strided(np.frombuffer(raw, NUMPY_TYPES[datatype]), shape, strides).copy()

    def synchronize(self) -> None:
        pass


class GpuMemory:
    """One stream, and per input a pinned and a device buffer that grow and are reused."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._buffers: dict[str, tuple[PinnedBuffer, int, int]] = {}
        context.make_current()
        self._stream_buffer = PinnedBuffer(context, 4096)
        self.stream = self._stream_buffer.stream

    def stage_input(self, name: str, array: Array) -> int:
        self._context.make_current()
        buffer, pointer, size = self._buffers.get(name) or self._reallocate(name, array.nbytes)
        if size < array.nbytes:
            buffer, pointer, size = self._reallocate(name, array.nbytes)
        if array.nbytes:
            buffer.memory[: array.nbytes] = array.reshape(-1).view(np.uint8).data
            buffer.send(pointer, array.nbytes, self.stream)
        return pointer

    def _reallocate(self, name: str, size: int) -> tuple[PinnedBuffer, int, int]:
        if name in self._buffers:
            buffer, pointer, _ = self._buffers.pop(name)
            buffer.close()
            self._context.free(pointer)
        capacity = max(4096, 1 << (size - 1).bit_length() if size else 0)
        buffers = PinnedBuffer(self._context, capacity), self._context.allocate(capacity), capacity
        self._buffers[name] = buffers
        return buffers

    def read_output(self, address: int, datatype: str, shape: Shape, strides: Shape) -> Array:
        flat = np.empty(span(shape, strides), NUMPY_TYPES[datatype])
        if flat.nbytes:
            self._context.copy_to_host(int(flat.ctypes.data), address, flat.nbytes)
        return strided(flat, shape, strides)

    def synchronize(self) -> None:
        self._stream_buffer.wait()

    def close(self) -> None:
        self._context.make_current()
        for buffer, pointer, _ in self._buffers.values():
            buffer.close()
            self._context.free(pointer)
        self._buffers.clear()
        self._stream_buffer.close()


def span(shape: Shape, strides: Shape) -> int:
    """Number of items from the first to the last of a strided tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((dim - 1) * step for dim, step in zip(shape, strides, strict=True))


def strided(flat: Array, shape: Shape, strides: Shape) -> Array:
    steps = tuple(step * flat.itemsize for step in strides)
    if not flat.size:
        return flat.reshape(shape)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, shape, steps))


class MappedWeights:
    """safetensors files mapped from the page cache, for a model on the CPU."""

    def __init__(self, path: Path) -> None:
        self._maps: list[Array] = []
        self.blocks: list[Block] = []  # no device memory
        self.stored: dict[str, StoredTensor] = {}
        for file in map(read_header, weight_files(path)):
            with file.path.open("rb") as opened:
                pages = np.frombuffer(mmap(opened.fileno(), 0, access=ACCESS_READ), np.uint8)
            self._maps.append(pages)
            base = int(pages.ctypes.data) + file.data_offset
            self.stored |= {name: (info.dtype, info.shape, base + info.begin) for name, info in file.tensors.items()}


def aligned_offsets(tensors: Mapping[str, TensorInfo]) -> tuple[dict[str, int], int]:
    """Aligned offset of each tensor, and the total size."""
    offsets, size = {}, 0
    for name, info in tensors.items():
        offsets[name] = size
        size += -(-(info.end - info.begin) // ALIGNED) * ALIGNED
    return offsets, size


class DeviceWeights:
    """Weights on a GPU. Compiled kernels read 16 bytes at once, so tensors that the file misaligns are copied."""

    def __init__(self, transfer: WeightTransfer) -> None:
        blocks = transfer.wait()
        self.stored: dict[str, StoredTensor] = {}
        self.blocks = [block for block, _ in blocks]
        for block, tensors in blocks:
            for name, info in tensors.items():
                self.stored[name] = info.dtype, info.shape, block.pointer + info.begin
            self._realign(block, {name: info for name, info in tensors.items() if info.begin % ALIGNED})

    def _realign(self, block: Block, misaligned: Mapping[str, TensorInfo]) -> None:
        """Copy misaligned tensors, on the device, to a block of their own."""
        offsets, size = aligned_offsets(misaligned)
        if not size:
            return
        aligned = Block.allocate(block.context, size, block.range is not None)
        self.blocks.append(aligned)
        for name, info in misaligned.items():
            block.context.copy_on_device(
                aligned.pointer + offsets[name], block.pointer + info.begin, info.end - info.begin
            )
            self.stored[name] = info.dtype, info.shape, aligned.pointer + offsets[name]
