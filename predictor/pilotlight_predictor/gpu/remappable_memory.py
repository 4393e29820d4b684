"""Virtual address ranges on a device whose physical memory can be unmapped and mapped again.

Parkable weights lie in such ranges: torch or a compiled model finds its tensors at the same addresses after a wake.
safetensors_upload.py fills ranges, parked_weights.py unmaps and restores them.
"""

from collections.abc import Iterator
from contextlib import suppress
from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cuda_driver import Context

CHUNK_BYTES: Final = 256 << 20  # a chunk is copied while the next is mapped: 5 ms at 55 GB/s
ON_DEVICE: Final = 1
READ_AND_WRITE: Final = 3


class _Location(Structure):
    _fields_ = (("kind", c_int), ("index", c_int))


class _Flags(Structure):
    _fields_ = (("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4))


class _Properties(Structure):
    """The driver's CUmemAllocationProp; kind 1 is pinned device memory."""

    _fields_ = (
        ("kind", c_int), ("handles", c_int), ("location", _Location), ("metadata", c_void_p), ("flags", _Flags),
    )  # fmt: skip


class _Access(Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


def chunks(size: int, largest: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """Offset and size of each chunk, in order; all but the last have the largest size."""
    return [(begin, min(largest, size - begin)) for begin in range(0, size, largest)]


class DeviceRange:
    """Address range. `pointer` is valid for the object's life; its memory only between `map_memory` and `release`."""

    def __init__(self, context: Context, size: int) -> None:
        self._context = context
        self._location = _Location(ON_DEVICE, context.index)
        self._properties = _Properties(kind=1, location=self._location)
        context.make_current()
        grain, pointer = c_size_t(), c_uint64()
        context.call("cuMemGetAllocationGranularity", byref(grain), byref(self._properties), 0)
        self.size = -(-max(size, 1) // grain.value) * grain.value
        context.call("cuMemAddressReserve", byref(pointer), self.size, 0, 0, 0)
        self.pointer = pointer.value
        self._mapped: list[tuple[int, int]] = []

    def map_memory(self, largest: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
        """Map memory chunk by chunk, yielding each; a failure unmaps all of them."""
        self._context.make_current()
        if self._mapped:  # an earlier release failed half-way
            self.release()
        try:
            for begin, size in chunks(self.size, largest):
                self._map_chunk(begin, size)
                yield begin, size
        except BaseException:
            with suppress(LoadFailed):  # raise the first error
                self.release()
            raise

    def _map_chunk(self, begin: int, size: int) -> None:
        """Map one chunk. The handle is released at once: a mapping keeps the memory allocated."""
        handle, call, address = c_uint64(), self._context.call, self.pointer + begin
        call("cuMemCreate", byref(handle), size, byref(self._properties), 0)
        try:
            call("cuMemMap", address, size, 0, handle, 0)
            self._mapped.append((begin, size))
        finally:
            call("cuMemRelease", handle)
        access = _Access(self._location, READ_AND_WRITE)
        call("cuMemSetAccess", address, size, byref(access), 1)

    def release(self) -> None:
        """Unmap the memory after all work on the device is done; the addresses stay reserved."""
        self._context.synchronize()
        while self._mapped:
            begin, size = self._mapped[-1]
            self._context.call("cuMemUnmap", self.pointer + begin, size)
            self._mapped.pop()

    def close(self) -> None:
        self.release()
        self._context.call("cuMemAddressFree", self.pointer, self.size)
