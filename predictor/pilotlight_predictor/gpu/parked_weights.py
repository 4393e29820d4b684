"""Weights of one model on one device that can be parked in pinned host memory and restored by one transfer.

Backends hold one where their weights lie in address ranges (remappable_memory.py). Weights do not change, so they are
copied to the host once; later parkings only unmap the device's memory.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_void_p
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cuda_driver import NON_BLOCKING, Context
from pilotlight_predictor.gpu.remappable_memory import CHUNK_BYTES
from pilotlight_predictor.gpu.safetensors_upload import Block, PinnedMemory

STREAMS: Final = 2


class Streams:
    """CUDA streams used in turn: one copies while the next gets its work."""

    def __init__(self, context: Context, number: int = STREAMS) -> None:
        self._context, self._turn = context, 0
        self._streams: list[int] = []
        context.make_current()
        for _ in range(number):
            stream = c_void_p()
            context.call("cuStreamCreate", byref(stream), NON_BLOCKING)
            self._streams.append(int(stream.value or 0))

    def copy(self, name: str, to: int, source: int, size: int) -> None:
        self._context.call(name, to, source, size, self._streams[self._turn])
        self._turn = (self._turn + 1) % len(self._streams)

    def __enter__(self) -> "Streams":
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for all copies, then destroy the streams."""
        try:
            for stream in self._streams:
                self._context.call("cuStreamSynchronize", stream)
        finally:
            for stream in self._streams:
                self._context.call("cuStreamDestroy_v2", stream)


class ParkedWeights:
    """A Parkable (backends/base.py) of device blocks, shared by instances that share weights."""

    def __init__(self, blocks: Sequence[Block], on_parked: Callable[[], object] = lambda: None) -> None:
        """`on_parked` is called after the weights have left the device, to free caches that served them."""
        self._blocks, self._on_parked = blocks, on_parked
        self._copies: list[PinnedMemory] = []
        self.parked = False

    @property
    def size(self) -> int:
        return sum(block.size for block in self._blocks)

    @property
    def host_bytes(self) -> int:
        return sum(copy.size for copy in self._copies)

    def prepare(self) -> None:
        """Copy the weights to the host if not done yet, while requests run: pinning takes longer than the copy.

        Raises LoadFailed if the host has no memory for them.
        """
        if self._copies:
            return
        copies: list[PinnedMemory] = []
        for block in self._blocks:
            block.context.synchronize()
            copies.append(PinnedMemory(block.context, block.size))
            with Streams(block.context) as streams:
                streams.copy("cuMemcpyDtoHAsync_v2", copies[-1].address, block.pointer, block.size)
        self._copies = copies

    def park(self) -> None:
        if self.parked:
            return
        self.prepare()
        for block in self._blocks:
            block.context.synchronize()
        self.parked = True  # from the first chunk on
        self._release(self._blocks)
        with suppress(Exception):
            self._on_parked()

    def _release(self, blocks: Sequence[Block]) -> None:
        """Unmap the blocks. A chunk that the driver does not unmap is retried at the next wake, which may then fail."""
        for block in blocks:
            assert block.range is not None
            with suppress(LoadFailed):
                block.range.release()

    def wake(self, largest: int = CHUNK_BYTES, streams: int = STREAMS) -> None:
        """Restore the weights. Raises LoadFailed if the device has no memory for them; then they stay parked."""
        if not self.parked:
            return
        done: list[Block] = []
        try:
            for block, copy in zip(self._blocks, self._copies, strict=True):
                done.append(block)
                _restore(block, copy, largest, streams)
        except BaseException:
            self._release(done)
            raise
        self.parked = False

    def drop_host_copy(self) -> None:
        """Free the host copy of weights on the device; the next parking copies them again."""
        if not self.parked:
            self._copies = []


def create_parked_weights(
    blocks: Sequence[Block], on_parked: Callable[[], object] = lambda: None
) -> ParkedWeights | None:
    """Return None unless all blocks lie in address ranges, which they do with --park-memory only."""
    if not blocks or any(block.range is None for block in blocks):
        return None
    return ParkedWeights(blocks, on_parked)


def _restore(block: Block, copy: PinnedMemory, largest: int, number: int) -> None:
    """Copy each chunk while the next is being mapped; the last chunk may extend beyond the block."""
    assert block.range is not None
    with Streams(block.context, number) as streams:
        for begin, size in block.range.map_memory(largest):
            wanted = min(size, block.size - begin)
            if wanted > 0:
                streams.copy("cuMemcpyHtoDAsync_v2", block.pointer + begin, copy.address + begin, wanted)
