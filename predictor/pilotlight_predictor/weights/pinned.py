"""Pinned memory of the host: the device copies from it by itself, at the speed of its link.

parked_weights.py keeps a copy of each block in it, moving.py sends weights through buffers of it. The driver's own
allocation pins page after page by one thread; huge pages that several threads have touched are pinned six times as
fast, in all (2 GiB beside an H200: 0.16 s against 1.03 s).
"""

import ctypes
import mmap
import os
from contextlib import suppress
from ctypes import byref, c_void_p
from functools import partial
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.threads import in_threads
from pilotlight_predictor.weights.cuda_driver import NON_BLOCKING, Context

THREADS: Final = 8
HUGE_PAGE: Final = 2 << 20
ALONE: Final = 32 << 20  # bytes that one thread has touched before another would have begun


class HostCopy:
    """Raises LoadFailed where the host has no such memory. Given back with the last reference to it."""

    def __init__(self, context: Context, size: int) -> None:
        self._context, self.size = context, size
        self._pages: mmap.mmap | None = None  # None: the memory is the driver's
        context.enter()
        if size >= HUGE_PAGE:
            with suppress(LoadFailed, OSError):
                self._pages, self.address = _registered(context, size)
                return
        self.address = _allocated(context, max(size, 1))

    def __del__(self) -> None:
        """At the end of the process the driver may be gone already; then the kernel takes all of it."""
        with suppress(Exception):
            self._context.enter()
            if self._pages is None:
                self._context.call("cuMemFreeHost", self.address)
            else:
                self._context.call("cuMemHostUnregister", self.address)
                self._pages.close()


def _registered(context: Context, size: int) -> tuple[mmap.mmap, int]:
    """Memory of ours, pinned; LoadFailed where the driver refuses."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        with suppress(OSError):  # a kernel without them has small ones
            pages.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        _touch(address, size)
        context.call("cuMemHostRegister_v2", address, size, 0)
    except BaseException:
        pages.close()
        raise
    return pages, address


def _touch(address: int, size: int) -> None:
    """Whole huge pages for each thread, so that no two of them wait for the same one."""
    threads = min(THREADS, os.cpu_count() or 1)
    step = max(-(-size // (threads * HUGE_PAGE)) * HUGE_PAGE, ALONE)
    work = [partial(ctypes.memset, address + begin, 0, min(step, size - begin)) for begin in range(0, size, step)]
    in_threads(work, "pilotlight-pinning")


def _allocated(context: Context, size: int) -> int:
    address = c_void_p()
    context.call("cuMemHostAlloc", byref(address), size, 0)
    assert address.value is not None
    return address.value


class PinnedBuffer:
    """Pinned memory to write to, and a stream of its own on which the device takes it."""

    def __init__(self, context: Context, size: int) -> None:
        self._context, stream = context, c_void_p()
        self._pinned: HostCopy | None = HostCopy(context, size)
        self._address = self._pinned.address
        context.call("cuStreamCreate", byref(stream), NON_BLOCKING)
        self.stream = int(stream.value or 0)
        self.memory = memoryview((ctypes.c_char * size).from_address(self._address)).cast("B")

    def send(self, to: int, size: int, stream: int = 0) -> None:
        """On the buffer's own stream, unless another is named."""
        self._context.call("cuMemcpyHtoDAsync_v2", to, self._address, size, stream or self.stream)

    def wait(self) -> None:
        self._context.call("cuStreamSynchronize", self.stream)

    def __enter__(self) -> "PinnedBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        """What was sent arrives before the memory goes."""
        try:
            self.wait()
        finally:
            self.close()

    def close(self) -> None:
        self.memory.release()
        self._pinned = None
        self._context.call("cuStreamDestroy_v2", self.stream)
