"""CUDA driver API by ctypes, as far as weights need it: no CUDA library and no framework is loaded.

Uses the device's primary context, which every framework shares, so that frameworks can use this memory directly.
"""

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from mmap import mmap
from threading import Lock, RLock
from typing import Any, ClassVar, Final

from pilotlight_predictor.errors import LoadFailed

OUT_OF_MEMORY: Final = 2
NON_BLOCKING: Final = 1
# A device-wide synchronise invalidates a graph capture in any thread, and fails itself: only one of them at a time.
# Reentrant, since freeing weights inside the locked section synchronises too.
DEVICE_SYNC_LOCK: Final = RLock()
STACK_SIZE: Final = 0  # the limit's number
PINNED_BYTES: Final = 32 << 20  # of each front: 220 images of 150 kB; the H200 pins them in 15 ms
_stacks_lock: Final = Lock()
_freed_stacks: Final[dict[int, int]] = {}  # by device: the limit to restore


@cache
def library(load: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """Load libcuda and declare its signatures. Raises LoadFailed without a driver. With PyDLL calls keep the GIL."""
    try:
        cuda = load("libcuda.so.1")
    except OSError as error:
        raise LoadFailed(f"no NVIDIA driver found: {error}") from None
    for name, types in _SIGNATURES.items():
        function = getattr(cuda, name)
        function.argtypes, function.restype = types, c_int
    _check(cuda, cuda.cuInit(0), "cuInit")
    return cuda


def compute_capability(index: int) -> str | None:
    """Compute capability such as "9.0", without creating a context; None if there is no such device."""
    device, major, minor = c_int(), c_int(), c_int()
    try:
        cuda = library()
    except LoadFailed:
        return None
    if cuda.cuDeviceGet(byref(device), index):
        return None
    for attribute, value in ((75, major), (76, minor)):
        cuda.cuDeviceGetAttribute(byref(value), attribute, device)
    return f"{major.value}.{minor.value}"


class Context:
    """Primary context of one device. A thread must call `make_current` before it copies."""

    devices: ClassVar[set[int]] = set()  # that have had one

    def __init__(self, index: int) -> None:
        self.index = index
        self._cuda = library()
        device, handle = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), index)
        self.call("cuDevicePrimaryCtxRetain", byref(handle), device)
        self._handle = handle
        self.make_current()
        self.devices.add(index)

    def call(self, name: str, *arguments: Any) -> None:
        _check(self._cuda, getattr(self._cuda, name)(*arguments), name)

    def make_current(self) -> None:
        self.call("cuCtxSetCurrent", self._handle)

    def allocate(self, size: int) -> int:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), size)
        return pointer.value

    def free(self, pointer: int) -> None:
        """Free from any thread; do nothing at interpreter exit if the driver is shut down already."""
        if self._cuda.cuCtxSetCurrent(self._handle) == 0:
            self._cuda.cuMemFree_v2(pointer)

    def copy_to_device(self, to: int, address: int, size: int) -> None:
        """Copy from pageable host memory; blocks until done."""
        self.call("cuMemcpyHtoD_v2", to, address, size)

    def copy_pinned(self, to: int, pieces: Iterable[tuple[int, int]], stream: int) -> None:
        """Start copies from pinned addresses, each of a size. Keeps the GIL, which a thread would wait for at each."""
        cuda = library(ctypes.PyDLL)
        _check(cuda, cuda.cuCtxSetCurrent(self._handle), "cuCtxSetCurrent")
        for address, size in pieces:
            _check(cuda, cuda.cuMemcpyHtoDAsync_v2(to, address, size, stream), "cuMemcpyHtoDAsync_v2")
            to += size

    def copy_on_device(self, to: int, pointer: int, size: int) -> None:
        self.make_current()
        self.call("cuMemcpyDtoD_v2", to, pointer, size)

    def copy_to_host(self, address: int, pointer: int, size: int) -> None:
        """Copy to host memory; blocks until done."""
        self.make_current()
        self.call("cuMemcpyDtoH_v2", address, pointer, size)

    def synchronize(self) -> None:
        self.make_current()
        with DEVICE_SYNC_LOCK:
            self.call("cuCtxSynchronize")

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        free, total = c_size_t(), c_size_t()
        self.make_current()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value


context_of: Final = cache(Context)


class SharedMemory(mmap):
    """Memory that another process writes, from whose first bytes a GPU can copy once they are pinned."""

    _context: Context | None = None  # that pinned them
    _pinned: range | None = None  # their addresses; None before the first try

    def pinned(self, address: int, size: int, context: Context) -> bool:
        """Whether this part is pinned. The first call pins what is used most, unless the driver refuses."""
        with DEVICE_SYNC_LOCK:
            if self._pinned is None:
                start, whole = ctypes.addressof(ctypes.c_char.from_buffer(self)), min(len(self), PINNED_BYTES)
                self._pinned = range(start, start)
                with suppress(LoadFailed):
                    context.make_current()
                    context.call("cuMemHostRegister_v2", start, whole, 1)  # for all devices
                    self._pinned, self._context = range(start, start + whole), context
        return address in self._pinned and address + size <= self._pinned.stop

    def __del__(self) -> None:
        """Unpin before the memory is unmapped: the driver would take these pages for what is mapped there next."""
        if self._context is not None and self._pinned:
            with suppress(LoadFailed):
                self._context.make_current()
                self._context.call("cuMemHostUnregister", self._pinned.start)


def free_stacks(is_idle: Callable[[], bool]) -> None:
    """Free the memory that each context reserves for the stacks of kernels, 0.28 GB of an H200, while none can run.

    Unless a wake has begun: it restores them under the same lock.
    """
    with _stacks_lock, suppress(LoadFailed):  # the driver keeps them
        for index in (Context.devices if is_idle() else set()) - _freed_stacks.keys():
            context, limit = Context(index), c_size_t()
            context.call("cuCtxGetLimit", byref(limit), STACK_SIZE)
            context.call("cuCtxSetLimit", STACK_SIZE, 0)
            _freed_stacks[index] = limit.value


def restore_stacks() -> None:
    """Raises LoadFailed if a device has no memory for them."""
    with _stacks_lock:
        for index, limit in list(_freed_stacks.items()):
            Context(index).call("cuCtxSetLimit", STACK_SIZE, limit)
            del _freed_stacks[index]


_SIGNATURES: Final[dict[str, list[Any]]] = {
    "cuInit": [c_uint], "cuGetErrorString": [c_int, c_void_p], "cuDeviceGet": [c_void_p, c_int],
    "cuDeviceGetAttribute": [c_void_p, c_int, c_int], "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxSetCurrent": [c_void_p], "cuCtxSynchronize": [], "cuCtxGetLimit": [c_void_p, c_int],
    "cuCtxSetLimit": [c_int, c_size_t], "cuMemGetInfo_v2": [c_void_p, c_void_p],
    "cuMemAlloc_v2": [c_void_p, c_size_t], "cuMemFree_v2": [c_uint64], "cuMemHostAlloc": [c_void_p, c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p], "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p], "cuMemcpyHtoD_v2": [c_uint64, c_void_p, c_size_t],
    "cuMemcpyDtoD_v2": [c_uint64, c_uint64, c_size_t], "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemGetAllocationGranularity": [c_void_p, c_void_p, c_int],
    "cuMemAddressReserve": [c_void_p, c_size_t, c_size_t, c_uint64, c_uint64], "cuMemAddressFree": [c_uint64, c_size_t],
    "cuMemCreate": [c_void_p, c_size_t, c_void_p, c_uint64], "cuMemRelease": [c_uint64],
    "cuMemMap": [c_uint64, c_size_t, c_size_t, c_uint64, c_uint64], "cuMemUnmap": [c_uint64, c_size_t],
    "cuMemSetAccess": [c_uint64, c_size_t, c_void_p, c_size_t], "cuStreamCreate": [c_void_p, c_uint],
    "cuStreamDestroy_v2": [c_void_p], "cuStreamSynchronize": [c_void_p],
}  # fmt: skip


def _check(cuda: Any, code: int, name: str) -> None:
    if code == 0:
        return
    if code == OUT_OF_MEMORY:
        raise LoadFailed("CUDA out of memory: the weights do not fit into the free GPU memory")
    text = c_char_p()
    cuda.cuGetErrorString(code, byref(text))
    raise LoadFailed(f"the NVIDIA driver rejects {name}: {(text.value or b'unknown error').decode()} ({code})")
