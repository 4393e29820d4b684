"""Moves the data of safetensors files into the memory of a GPU, in threads, while others do something else.

Two ways, by what goes on meanwhile. While a framework is imported the interpreter is busy, and each return to Python
waits for it: every thread makes one long copy straight from the page cache. Otherwise a ring of pinned buffers, which
the device empties while the next one is read, is more than twice as fast.
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
from pilotlight_predictor.weights.safetensors_file import Place, WeightsFile, files_of, read

THREADS_NAME: Final = "pilotlight-weights"
PIECE: Final = 4 << 20
PAGE: Final = 1 << 20
LONG_THREADS: Final = 8
RING_THREADS: Final = 8  # 32 GB/s of page cache here; with 12 they wait for each other, at 21


@dataclass(slots=True)
class Block:
    """The data of one file on the device; freed with the last reference to it. Frameworks adopt it as it lies."""

    context: Context
    pointer: int
    size: int
    range: DeviceRange | None = None  # where its memory may be taken away for a while

    @classmethod
    def made(cls, context: Context, size: int, parks: bool) -> "Block":
        if not parks:
            return cls(context, context.allocate(max(size, 1)), size)
        range_ = DeviceRange(context, size)
        block = cls(context, range_.pointer, size, range_)
        for _ in range_.back():
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
class Moving:
    """A move that was begun. `wait` gives each file's block with its tensors, or raises what went wrong."""

    path: Path
    device: int
    beside_import: bool
    parks: bool = False  # the weights may leave the device later on
    seconds: float = 0.0
    _blocks: list[tuple[Block, Mapping[str, Place]]] = field(default_factory=list)
    _failed: list[Exception] = field(default_factory=list)
    _thread: Thread | None = None

    def begin(self) -> "Moving":
        self._thread = Thread(target=self._run, name=THREADS_NAME, daemon=True)
        self._thread.start()
        return self

    def wait(self) -> list[tuple[Block, Mapping[str, Place]]]:
        assert self._thread is not None
        self._thread.join()
        if self._failed:
            raise self._failed.pop()  # its frames lead back here: kept, it would keep the weights on the device
        blocks, self._blocks = self._blocks, []
        return blocks

    def _run(self) -> None:
        started = perf_counter()
        try:
            context = Context(self.device)
            for file in map(read, files_of(self.path)):
                block = Block.made(context, file.data_bytes, self.parks)
                move(file, block, self.beside_import)
                self._blocks.append((block, file.tensors))
        except Exception as error:
            self._failed.append(error)
        self.seconds = perf_counter() - started


def move(file: WeightsFile, block: Block, beside_import: bool) -> None:
    descriptor = os.open(file.path, os.O_RDONLY)
    try:
        (_long_copies if beside_import else _ring)(descriptor, file, block)
    finally:
        os.close(descriptor)


def _long_copies(descriptor: int, file: WeightsFile, block: Block) -> None:
    whole = file.data_begins + file.data_bytes
    if not file.data_bytes:
        return
    with mmap.mmap(descriptor, whole, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as pages:
        address = _address(pages) + file.data_begins
        step = -(-file.data_bytes // (LONG_THREADS * PAGE)) * PAGE

        def copy(begin: int) -> None:
            block.context.enter()
            block.context.copy(block.pointer + begin, address + begin, min(step, file.data_bytes - begin))

        in_threads([partial(copy, begin) for begin in range(0, file.data_bytes, step)], THREADS_NAME)


def _address(pages: mmap.mmap) -> int:
    """Of a map that nobody may write to, which ctypes does not tell; numpy does."""
    import numpy as np

    return int(np.frombuffer(pages, np.uint8).ctypes.data)


def _ring(descriptor: int, file: WeightsFile, block: Block) -> None:
    pieces, lock = iter(range(0, file.data_bytes, PIECE)), Lock()

    def copy() -> None:
        block.context.enter()
        with ExitStack() as kept:
            buffers = [kept.enter_context(PinnedBuffer(block.context, PIECE)) for _ in range(2)]
            _empty(buffers, pieces, lock, descriptor, file, block)

    threads = min(RING_THREADS, os.cpu_count() or 1, -(-file.data_bytes // PIECE) or 1)
    in_threads([copy] * threads, THREADS_NAME)


def _empty(
    buffers: list[PinnedBuffer], pieces: Iterator[int], lock: Lock, descriptor: int, file: WeightsFile, block: Block
) -> None:
    """Reads into one buffer while the device takes the other."""
    turn = 0
    while True:
        with lock:
            begin = next(pieces, None)
        if begin is None:
            return
        buffer, turn = buffers[turn], turn ^ 1
        size = min(PIECE, file.data_bytes - begin)
        buffer.wait()
        _fill(buffer.memory[:size], descriptor, file, begin)
        buffer.send(block.pointer + begin, size)


def _fill(memory: memoryview, descriptor: int, file: WeightsFile, begin: int) -> None:
    """A read may give less than was asked for."""
    done = 0
    while done < len(memory):
        got = os.preadv(descriptor, [memory[done:]], file.data_begins + begin + done)
        if not got:
            raise LoadFailed(f"{file.path.name} became shorter while it was read")
        done += got
