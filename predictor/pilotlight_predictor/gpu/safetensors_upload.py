"""Transfer of safetensors files to GPU memory, in background threads, and the pinned host memory for it.

Two strategies. While a framework is being imported the GIL is contended, so every thread makes one long copy straight
from the page cache. Otherwise a ring of pinned buffers, which the device reads while the next one is filled, is more
than twice as fast.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from ctypes import byref, c_void_p
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter
from typing import Final

from pilotlight_predictor.core.threads import in_threads
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cuda_driver import NON_BLOCKING, Context
from pilotlight_predictor.gpu.remappable_memory import DeviceRange
from pilotlight_predictor.gpu.safetensors_header import TensorInfo, WeightsFile, read_header, weight_files

THREADS: Final = 8
HUGE_PAGE: Final = 2 << 20
MIN_BYTES_PER_THREAD: Final = 32 << 20  # one thread touches this before another has started
THREADS_NAME: Final = "pilotlight-weights"
# Figures of an H200 with 16 cores and 8.6 GB in the page cache.
BUFFER_BYTES: Final = 4 << 20  # 48 GB/s; 1 MiB 19 GB/s, 16 MiB 37 GB/s
STEP_ALIGNMENT: Final = 1 << 20  # whole pages; 4 KiB to 2 MiB are equally fast
PAGE_CACHE_THREADS: Final = 8  # 7 GB/s, as any number from 2 to 16
RING_THREADS: Final = 8  # 49 GB/s; 4 threads 29 GB/s, 16 threads 46 GB/s


class PinnedMemory:
    """Pinned memory, freed with its last reference. Raises LoadFailed if the host has none.

    The driver's own allocation pins page by page in one thread; registering huge pages that several threads have
    touched is six times as fast in total (2 GiB with an H200: 0.16 s against 1.03 s).
    """

    def __init__(self, context: Context, size: int) -> None:
        self._context, self.size = context, size
        self._pages: mmap.mmap | None = None  # None: allocated by the driver
        context.make_current()
        if size >= HUGE_PAGE:
            with suppress(LoadFailed, OSError):
                self._pages, self.address = _register_pages(context, size)
                return
        address = c_void_p()
        context.call("cuMemHostAlloc", byref(address), max(size, 1), 0)
        assert address.value is not None
        self.address = address.value

    def __del__(self) -> None:
        """Free; at interpreter exit the driver may be shut down already, and the kernel frees all."""
        with suppress(Exception):
            self._context.make_current()
            if self._pages is None:
                self._context.call("cuMemFreeHost", self.address)
            else:
                self._context.call("cuMemHostUnregister", self.address)
                self._pages.close()


def _register_pages(context: Context, size: int) -> tuple[mmap.mmap, int]:
    """Map memory and pin it. Raises LoadFailed if the driver refuses."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        # Whole huge pages per thread, so that no two threads fault on the same one.
        threads = min(THREADS, os.cpu_count() or 1)
        step = max(-(-size // (threads * HUGE_PAGE)) * HUGE_PAGE, MIN_BYTES_PER_THREAD)
        work = [partial(ctypes.memset, address + begin, 0, min(step, size - begin)) for begin in range(0, size, step)]
        in_threads(work, "pilotlight-pinning")
        context.call("cuMemHostRegister_v2", address, size, 0)
    except BaseException:
        pages.close()
        raise
    return pages, address


class PinnedBuffer:
    """Writable pinned memory with its own stream to send it to the device."""

    def __init__(self, context: Context, size: int) -> None:
        self._context, stream = context, c_void_p()
        self._pinned: PinnedMemory | None = PinnedMemory(context, size)
        self._address = self._pinned.address
        context.call("cuStreamCreate", byref(stream), NON_BLOCKING)
        self.stream = int(stream.value or 0)
        self.memory = memoryview((ctypes.c_char * size).from_address(self._address)).cast("B")

    def send(self, to: int, size: int, stream: int = 0) -> None:
        """Start a copy to the device, on the buffer's own stream unless another is given."""
        self._context.call("cuMemcpyHtoDAsync_v2", to, self._address, size, stream or self.stream)

    def wait(self) -> None:
        self._context.call("cuStreamSynchronize", self.stream)

    def __enter__(self) -> "PinnedBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for pending copies, then free."""
        try:
            self.wait()
        finally:
            self.close()

    def close(self) -> None:
        self.memory.release()
        self._pinned = None
        self._context.call("cuStreamDestroy_v2", self.stream)


@dataclass(slots=True)
class Block:
    """Data of one file on the device, freed with its last reference. Frameworks use it without a copy."""

    context: Context
    pointer: int
    size: int
    range: DeviceRange | None = None  # of parkable weights

    @classmethod
    def allocate(cls, context: Context, size: int, parks: bool) -> "Block":
        if not parks:
            return cls(context, context.allocate(max(size, 1)), size)
        range_ = DeviceRange(context, size)
        block = cls(context, range_.pointer, size, range_)
        for _ in range_.map_memory():
            pass
        return block

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}

    def __del__(self) -> None:
        with suppress(Exception):
            if self.range is not None:
                self.range.close()
            else:
                self.context.free(self.pointer)


@dataclass(slots=True)
class WeightTransfer:
    """Transfer in the background. `wait` returns each file's block with its tensors, or raises the failure."""

    path: Path
    device: int
    during_import: bool
    parkable: bool = False
    seconds: float = 0.0
    _blocks: list[tuple[Block, Mapping[str, TensorInfo]]] = field(default_factory=list)
    _failed: list[Exception] = field(default_factory=list)
    _thread: Thread | None = None

    def start(self) -> "WeightTransfer":
        self._thread = Thread(target=self._run, name=THREADS_NAME, daemon=True)
        self._thread.start()
        return self

    def wait(self) -> list[tuple[Block, Mapping[str, TensorInfo]]]:
        assert self._thread is not None
        self._thread.join()
        if self._failed:
            raise self._failed.pop()  # its traceback references self: stored, it would keep the weights allocated
        blocks, self._blocks = self._blocks, []
        return blocks

    def _run(self) -> None:
        started = perf_counter()
        try:
            context = Context(self.device)
            for file in map(read_header, weight_files(self.path)):
                block = Block.allocate(context, file.data_bytes, self.parkable)
                transfer(file, block, self.during_import)
                self._blocks.append((block, file.tensors))
        except Exception as error:
            self._failed.append(error)
        self.seconds = perf_counter() - started


def transfer(file: WeightsFile, block: Block, during_import: bool) -> None:
    descriptor = os.open(file.path, os.O_RDONLY)
    try:
        (_copy_from_page_cache if during_import else _copy_through_ring)(descriptor, file, block)
    finally:
        os.close(descriptor)


def _copy_from_page_cache(descriptor: int, file: WeightsFile, block: Block) -> None:
    import numpy as np

    whole = file.data_offset + file.data_bytes
    if not file.data_bytes:
        return
    with mmap.mmap(descriptor, whole, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as pages:
        # numpy exposes the address of a read-only map, ctypes does not.
        address = int(np.frombuffer(pages, np.uint8).ctypes.data) + file.data_offset
        step = -(-file.data_bytes // (PAGE_CACHE_THREADS * STEP_ALIGNMENT)) * STEP_ALIGNMENT

        def copy(begin: int) -> None:
            block.context.make_current()
            block.context.copy_to_device(block.pointer + begin, address + begin, min(step, file.data_bytes - begin))

        in_threads([partial(copy, begin) for begin in range(0, file.data_bytes, step)], THREADS_NAME)


def _copy_through_ring(descriptor: int, file: WeightsFile, block: Block) -> None:
    offsets, lock = iter(range(0, file.data_bytes, BUFFER_BYTES)), Lock()

    def copy() -> None:
        block.context.make_current()
        with ExitStack() as stack:
            buffers = [stack.enter_context(PinnedBuffer(block.context, BUFFER_BYTES)) for _ in range(2)]
            _pump(buffers, offsets, lock, descriptor, file, block)

    threads = min(RING_THREADS, os.cpu_count() or 1, -(-file.data_bytes // BUFFER_BYTES) or 1)
    in_threads([copy] * threads, THREADS_NAME)


def _pump(
    buffers: list[PinnedBuffer], offsets: Iterator[int], lock: Lock, descriptor: int, file: WeightsFile, block: Block
) -> None:
    """Fill one buffer while the device copies from the other."""
    turn = 0
    while True:
        with lock:  # shared offsets: a thread slowed by the disk takes fewer blocks
            begin = next(offsets, None)
        if begin is None:
            return
        buffer, turn = buffers[turn], turn ^ 1
        size = min(BUFFER_BYTES, file.data_bytes - begin)
        buffer.wait()
        _fill(buffer.memory[:size], descriptor, file, begin)
        buffer.send(block.pointer + begin, size)


def _fill(memory: memoryview, descriptor: int, file: WeightsFile, begin: int) -> None:
    """Fill `memory`; a read may return fewer bytes than requested."""
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:]], file.data_offset + begin + done)
        if not count:
            raise LoadFailed(f"{file.path.name} was truncated while it was read")
        done += count
