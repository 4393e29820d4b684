"""Addresses on one device that stay while the memory behind them comes and goes, by the driver's virtual memory.

Weights that may be parked lie in such a range: whoever adopted a tensor in it, torch or a compiled model, finds it at
the same address after a wake. moving.py fills ranges, parked_weights.py takes their memory away and brings it back.
"""

from collections.abc import Iterator
from contextlib import suppress
from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.weights.cuda_driver import Context

PIECE: Final = 256 << 20  # a piece is copied while the next one is made: 5 ms of a link of 55 GB/s
ON_DEVICE: Final = 1
READ_AND_WRITE: Final = 3


class _Location(Structure):
    _fields_ = (("kind", c_int), ("index", c_int))


class _Flags(Structure):
    _fields_ = (("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4))


class _Properties(Structure):
    """The driver's CUmemAllocationProp; its kind 1 is memory that stays where it is."""

    _fields_ = (
        ("kind", c_int), ("handles", c_int), ("location", _Location), ("metadata", c_void_p), ("flags", _Flags),
    )  # fmt: skip


class _Access(Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


def pieces(size: int, largest: int = PIECE) -> list[tuple[int, int]]:
    """Offset and size of each, in order; all but the last are of the largest size."""
    return [(begin, min(largest, size - begin)) for begin in range(0, size, largest)]


class DeviceRange:
    """`pointer` is good for the object's life; what lies there only between `back` and `release`."""

    def __init__(self, context: Context, size: int) -> None:
        self._context = context
        self._where = _Location(ON_DEVICE, context.index)
        self._properties = _Properties(kind=1, location=self._where)
        context.enter()
        grain, pointer = c_size_t(), c_uint64()
        context.call("cuMemGetAllocationGranularity", byref(grain), byref(self._properties), 0)
        self.size = -(-max(size, 1) // grain.value) * grain.value
        context.call("cuMemAddressReserve", byref(pointer), self.size, 0, 0, 0)
        self.pointer = pointer.value
        self._backed: list[tuple[int, int]] = []

    def back(self, largest: int = PIECE) -> Iterator[tuple[int, int]]:
        """Gives the range memory, piece by piece as it is walked. One that is not to be had leaves none of them."""
        self._context.enter()
        if self._backed:  # what an earlier release could not let go of
            self.release()
        try:
            for begin, size in pieces(self.size, largest):
                self._back(begin, size)
                yield begin, size
        except BaseException:
            with suppress(LoadFailed):  # the reason is what came first
                self.release()
            raise

    def _back(self, begin: int, size: int) -> None:
        """The handle is let go at once: memory lives as long as it is mapped, and what is mapped is known."""
        handle, call, address = c_uint64(), self._context.call, self.pointer + begin
        call("cuMemCreate", byref(handle), size, byref(self._properties), 0)
        try:
            call("cuMemMap", address, size, 0, handle, 0)
            self._backed.append((begin, size))
        finally:
            call("cuMemRelease", handle)
        access = _Access(self._where, READ_AND_WRITE)
        call("cuMemSetAccess", address, size, byref(access), 1)

    def release(self) -> None:
        """The memory is free for others once nothing on the device uses it; the addresses stay."""
        self._context.settle()
        while self._backed:
            begin, size = self._backed[-1]
            self._context.call("cuMemUnmap", self.pointer + begin, size)
            self._backed.pop()

    def close(self) -> None:
        self.release()
        self._context.call("cuMemAddressFree", self.pointer, self.size)
