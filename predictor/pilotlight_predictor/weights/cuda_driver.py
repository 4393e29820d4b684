"""The few calls of NVIDIA's driver that weights need, by ctypes: no CUDA library and no framework is loaded for them.

The context is the device's primary one, which every framework uses too, so that memory of ours is theirs as it is.
"""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from threading import RLock
from typing import Any, Final

from pilotlight_predictor.errors import LoadFailed

OUT_OF_MEMORY: Final = 2
NON_BLOCKING: Final = 1
# Waiting for a whole device breaks the capture of a graph on it, whoever captures, and fails itself: one at a time. Of
# one thread more than one: weights that it drops wait for the device too.
WHOLE_DEVICE: Final = RLock()


@cache
def library() -> Any:
    """libcuda with the types of what is called; LoadFailed where there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LoadFailed(f"there is no NVIDIA driver here: {error}") from None
    for name, types in _CALLS.items():
        function = getattr(cuda, name)
        function.argtypes, function.restype = types, c_int
    _check(cuda, cuda.cuInit(0), "cuInit")
    return cuda


def compute_capability(index: int) -> str | None:
    """As in "9.0"; asked of the driver alone, which makes no context. None where there is no such device."""
    device, major, minor = c_int(), c_int(), c_int()
    try:
        cuda = library()
    except LoadFailed:
        return None
    if cuda.cuDeviceGet(byref(device), index):
        return None
    for attribute, place in ((75, major), (76, minor)):
        cuda.cuDeviceGetAttribute(byref(place), attribute, device)
    return f"{major.value}.{minor.value}"


class Context:
    """One device. Every thread that copies enters it first; what is allocated stays until it is freed here."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._cuda = library()
        device, handle = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), index)
        self.call("cuDevicePrimaryCtxRetain", byref(handle), device)
        self._handle = handle
        self.enter()

    def call(self, name: str, *arguments: Any) -> None:
        _check(self._cuda, getattr(self._cuda, name)(*arguments), name)

    def enter(self) -> None:
        self.call("cuCtxSetCurrent", self._handle)

    def allocate(self, size: int) -> int:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), size)
        return pointer.value

    def free(self, pointer: int) -> None:
        """From any thread, also at the end of the process, when the driver may be gone already."""
        if self._cuda.cuCtxSetCurrent(self._handle) == 0:
            self._cuda.cuMemFree_v2(pointer)

    def copy(self, to: int, address: int, size: int) -> None:
        """From memory that is not pinned; returns when it is there."""
        self.call("cuMemcpyHtoD_v2", to, address, size)

    def duplicate(self, to: int, pointer: int, size: int) -> None:
        """Within the device."""
        self.enter()
        self.call("cuMemcpyDtoD_v2", to, pointer, size)

    def fetch(self, address: int, pointer: int, size: int) -> None:
        """To memory of this process; returns when it is there."""
        self.enter()
        self.call("cuMemcpyDtoH_v2", address, pointer, size)

    def settle(self) -> None:
        """Until the device has done all that it was asked for."""
        self.enter()
        with WHOLE_DEVICE:
            self.call("cuCtxSynchronize")

    def memory(self) -> tuple[int, int]:
        """Free and all bytes of the device."""
        free, total = c_size_t(), c_size_t()
        self.enter()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value


_CALLS: Final[dict[str, list[Any]]] = {
    "cuInit": [c_uint],
    "cuGetErrorString": [c_int, c_void_p],
    "cuDeviceGet": [c_void_p, c_int],
    "cuDeviceGetAttribute": [c_void_p, c_int, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuMemGetInfo_v2": [c_void_p, c_void_p],
    "cuMemAlloc_v2": [c_void_p, c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemHostAlloc": [c_void_p, c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
    "cuMemcpyHtoD_v2": [c_uint64, c_void_p, c_size_t],
    "cuMemcpyDtoD_v2": [c_uint64, c_uint64, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemGetAllocationGranularity": [c_void_p, c_void_p, c_int],
    "cuMemAddressReserve": [c_void_p, c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemAddressFree": [c_uint64, c_size_t],
    "cuMemCreate": [c_void_p, c_size_t, c_void_p, c_uint64],
    "cuMemRelease": [c_uint64],
    "cuMemMap": [c_uint64, c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemUnmap": [c_uint64, c_size_t],
    "cuMemSetAccess": [c_uint64, c_size_t, c_void_p, c_size_t],
    "cuStreamCreate": [c_void_p, c_uint],
    "cuStreamDestroy_v2": [c_void_p],
    "cuStreamSynchronize": [c_void_p],
}


def _check(cuda: Any, code: int, name: str) -> None:
    if code == 0:
        return
    if code == OUT_OF_MEMORY:
        raise LoadFailed("CUDA out of memory: the weights do not fit beside what the GPU holds already")
    text = c_char_p()
    cuda.cuGetErrorString(code, byref(text))
    raise LoadFailed(f"the NVIDIA driver refuses {name}: {(text.value or b'unknown error').decode()} ({code})")
