"""Where a compiled model finds its inputs and leaves its outputs: memory of this process, or of one GPU.

Both lend an address for an array and fetch what lies at another; `stream` is what the model runs on.
"""

import ctypes
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from pilotlight_predictor.tensors import NUMPY_TYPES, Array, Shape
from pilotlight_predictor.weights.cuda_driver import Context
from pilotlight_predictor.weights.moving import Block, Moving
from pilotlight_predictor.weights.pinned import PinnedBuffer
from pilotlight_predictor.weights.safetensors_file import Place, files_of, read

Stored = tuple[str, Shape, int]
ALIGNED: Final = 16


class Memory(Protocol):
    stream: int

    def lend(self, name: str, array: Array) -> int: ...
    def fetch(self, address: int, datatype: str, shape: Shape, strides: Shape) -> Array: ...
    def settle(self) -> None:
        """Until all that the model was asked for is done."""


class HostMemory:
    """Arrays are lent as they lie; what the model made is copied, since it is deleted afterwards."""

    stream = 0

    def lend(self, name: str, array: Array) -> int:
        return int(array.ctypes.data)

    def fetch(self, address: int, datatype: str, shape: Shape, strides: Shape) -> Array:
        items = span(shape, strides)
        if not items:
            return np.empty(shape, NUMPY_TYPES[datatype])
        raw = memoryview((ctypes.c_char * (items * NUMPY_TYPES[datatype].itemsize)).from_address(address)).cast("B")
        return strided(np.frombuffer(raw, NUMPY_TYPES[datatype]), shape, strides).copy()

    def settle(self) -> None:
        pass


class GpuMemory:
    """One stream; an input has a pinned buffer and a place on the device, which grow and are used again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._places: dict[str, tuple[PinnedBuffer, int, int]] = {}
        context.enter()
        self._pace = PinnedBuffer(context, 4096)
        self.stream = self._pace.stream

    def lend(self, name: str, array: Array) -> int:
        self._context.enter()
        buffer, place, size = self._places.get(name) or self._grown(name, array.nbytes)
        if size < array.nbytes:
            buffer, place, size = self._grown(name, array.nbytes)
        if array.nbytes:
            buffer.memory[: array.nbytes] = array.reshape(-1).view(np.uint8).data
            buffer.send(place, array.nbytes, self.stream)
        return place

    def _grown(self, name: str, size: int) -> tuple[PinnedBuffer, int, int]:
        if name in self._places:
            buffer, place, _ = self._places.pop(name)
            buffer.close()
            self._context.free(place)
        wanted = max(4096, 1 << (size - 1).bit_length() if size else 0)
        made = PinnedBuffer(self._context, wanted), self._context.allocate(wanted), wanted
        self._places[name] = made
        return made

    def fetch(self, address: int, datatype: str, shape: Shape, strides: Shape) -> Array:
        flat = np.empty(span(shape, strides), NUMPY_TYPES[datatype])
        if flat.nbytes:
            self._context.fetch(int(flat.ctypes.data), address, flat.nbytes)
        return strided(flat, shape, strides)

    def settle(self) -> None:
        self._pace.wait()

    def close(self) -> None:
        self._context.enter()
        for buffer, place, _ in self._places.values():
            buffer.close()
            self._context.free(place)
        self._places.clear()
        self._pace.close()


def span(shape: Shape, strides: Shape) -> int:
    """Items from the first to the last of a tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((dim - 1) * step for dim, step in zip(shape, strides, strict=True))


def strided(flat: Array, shape: Shape, strides: Shape) -> Array:
    steps = tuple(step * flat.itemsize for step in strides)
    return (
        np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, shape, steps)) if flat.size else flat.reshape(shape)
    )


class MappedWeights:
    """safetensors files as they lie in the page cache, for a model on the CPU."""

    def __init__(self, path: Path) -> None:
        self._maps: list[Array] = []
        self.blocks: list[Block] = []  # none of them on a device
        self.stored: dict[str, Stored] = {}
        for file in map(read, files_of(path)):
            with file.path.open("rb") as opened:
                pages = np.frombuffer(mmap(opened.fileno(), 0, access=ACCESS_READ), np.uint8)
            self._maps.append(pages)
            base = int(pages.ctypes.data) + file.data_begins
            self.stored |= {
                name: (place.dtype, place.shape, base + place.begin) for name, place in file.tensors.items()
            }


def laid_out(places: Mapping[str, Place]) -> tuple[dict[str, int], int]:
    """Offsets at which kernels may read them, and the size of all."""
    offsets, size = {}, 0
    for name, place in places.items():
        offsets[name] = size
        size += -(-(place.end - place.begin) // ALIGNED) * ALIGNED
    return offsets, size


class MovedWeights:
    """The same on a GPU, where they were moved to. Compiled kernels read 16 bytes at once, files are packed tighter."""

    def __init__(self, moving: Moving) -> None:
        moved = moving.wait()
        self.stored: dict[str, Stored] = {}
        self.blocks = [block for block, _ in moved]
        for block, tensors in moved:
            for name, place in tensors.items():
                self.stored[name] = place.dtype, place.shape, block.pointer + place.begin
            self._straighten(block, {name: place for name, place in tensors.items() if place.begin % ALIGNED})

    def _straighten(self, block: Block, crooked: Mapping[str, Place]) -> None:
        """Those that begin in between are copied, on the device, to places of their own."""
        offsets, size = laid_out(crooked)
        if not size:
            return
        own = Block.made(block.context, size, block.range is not None)
        self.blocks.append(own)
        for name, place in crooked.items():
            block.context.duplicate(own.pointer + offsets[name], block.pointer + place.begin, place.end - place.begin)
            self.stored[name] = place.dtype, place.shape, own.pointer + offsets[name]
