"""Transfer of safetensors files to GPU memory, in background threads.

Two strategies. While a framework is being imported the GIL is contended, so every thread makes one long copy straight
from the page cache. Otherwise a ring of pinned buffers, which the device reads while the next one is filled, is more
than twice as fast.
"""

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.threads import in_threads
from pilotlight_predictor.weights.cuda_driver import Context
from pilotlight_predictor.weights.device_range import DeviceRange
from pilotlight_predictor.weights.pinned import PinnedBuffer
from pilotlight_predictor.weights.safetensors_file import TensorInfo, WeightsFile, read_header, weight_files

THREADS_NAME: Final = "pilotlight-weights"
BUFFER_BYTES: Final = 4 << 20
STEP_ALIGNMENT: Final = 1 << 20
PAGE_CACHE_THREADS: Final = 8
RING_THREADS: Final = 8  # 32 GB/s from the page cache; 12 threads contend, at 21 GB/s


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


def transfer(file: WeightsFile, block: Block, beside_import: bool) -> None:
    descriptor = os.open(file.path, os.O_RDONLY)
    try:
        (_copy_from_page_cache if beside_import else _copy_through_ring)(descriptor, file, block)
    finally:
        os.close(descriptor)


def _copy_from_page_cache(descriptor: int, file: WeightsFile, block: Block) -> None:
    whole = file.data_offset + file.data_bytes
    if not file.data_bytes:
        return
    with mmap.mmap(descriptor, whole, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as pages:
        address = _address(pages) + file.data_offset
        step = -(-file.data_bytes // (PAGE_CACHE_THREADS * STEP_ALIGNMENT)) * STEP_ALIGNMENT

        def copy(begin: int) -> None:
            block.context.make_current()
            block.context.copy_to_device(block.pointer + begin, address + begin, min(step, file.data_bytes - begin))

        in_threads([partial(copy, begin) for begin in range(0, file.data_bytes, step)], THREADS_NAME)


def _address(pages: mmap.mmap) -> int:
    """Address of a read-only map, which ctypes refuses to give; numpy does."""
    import numpy as np

    return int(np.frombuffer(pages, np.uint8).ctypes.data)


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
        with lock:
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
            raise LoadFailed(f"{file.path.name} became shorter while it was read")
        done += count
