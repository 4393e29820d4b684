"""The weights of one model on one device, which may leave it: kept in pinned memory, brought back by one transfer.

Backends hold one of these where their weights lie in ranges of addresses (device_range.py). Weights do not change, so
they are copied to the host once; later parkings only give the device's memory back.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_void_p
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.weights.cuda_driver import NON_BLOCKING, Context
from pilotlight_predictor.weights.device_range import PIECE
from pilotlight_predictor.weights.moving import Block
from pilotlight_predictor.weights.pinned import HostCopy

STREAMS: Final = 2


class Streams:
    """A few, in turn: one copies while the next is given its work."""

    def __init__(self, context: Context, number: int = STREAMS) -> None:
        self._context, self._turn = context, 0
        self._streams: list[int] = []
        context.enter()
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
        """What was asked for is done before the streams go."""
        try:
            for stream in self._streams:
                self._context.call("cuStreamSynchronize", stream)
        finally:
            for stream in self._streams:
                self._context.call("cuStreamDestroy_v2", stream)


class ParkedWeights:
    """Used by one thread at a time. Instances that share weights share it: parking twice is parking once."""

    def __init__(self, blocks: Sequence[Block], left: Callable[[], object] = lambda: None) -> None:
        """`left` is called when they have left the device: what else was there for their sake may go too."""
        self._blocks, self._left = blocks, left
        self._copies: list[HostCopy] = []
        self.parked = False

    @property
    def size(self) -> int:
        return sum(block.size for block in self._blocks)

    @property
    def kept(self) -> int:
        return sum(copy.size for copy in self._copies)

    def prepare(self) -> None:
        """Copies them to the host, if that is to be done still: pinning takes longer than the copy, and whoever asks
        meanwhile is served. Raises LoadFailed where the host has no memory for them."""
        if not self._copies:
            self._copy_down()

    def park(self) -> None:
        if self.parked:
            return
        self.prepare()
        for block in self._blocks:
            block.context.settle()
        self.parked = True  # with the first piece that goes
        self._let_go(self._blocks)
        with suppress(Exception):
            self._left()

    def _let_go(self, blocks: Sequence[Block]) -> None:
        """A piece that the driver keeps is let go of at the next wake, or is the reason why that one fails."""
        for block in blocks:
            assert block.range is not None
            with suppress(LoadFailed):
                block.range.release()

    def _copy_down(self) -> None:
        copies: list[HostCopy] = []
        for block in self._blocks:
            block.context.settle()
            copies.append(HostCopy(block.context, block.size))
            with Streams(block.context) as streams:
                streams.copy("cuMemcpyDtoHAsync_v2", copies[-1].address, block.pointer, block.size)
        self._copies = copies

    def wake(self, largest: int = PIECE, streams: int = STREAMS) -> None:
        """Raises LoadFailed where the device has no room for them; then they stay parked."""
        if not self.parked:
            return
        done: list[Block] = []
        try:
            for block, copy in zip(self._blocks, self._copies, strict=True):
                done.append(block)
                _bring_back(block, copy, largest, streams)
        except BaseException:
            self._let_go(done)
            raise
        self.parked = False

    def forget(self) -> None:
        """Gives the host's memory back, of weights that are on the device; the next parking copies them again."""
        if not self.parked:
            self._copies = []


def parkable(blocks: Sequence[Block], left: Callable[[], object] = lambda: None) -> ParkedWeights | None:
    """None where not all of them lie in ranges, as they do where nobody may park (--park-memory)."""
    if not blocks or any(block.range is None for block in blocks):
        return None
    return ParkedWeights(blocks, left)


def _bring_back(block: Block, copy: HostCopy, largest: int, number: int) -> None:
    """Each piece is on its way while the next one gets its memory; of the last one only what the block has."""
    assert block.range is not None
    with Streams(block.context, number) as streams:
        for begin, size in block.range.back(largest):
            wanted = min(size, block.size - begin)
            if wanted > 0:
                streams.copy("cuMemcpyHtoDAsync_v2", block.pointer + begin, copy.address + begin, wanted)
