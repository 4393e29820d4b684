"""Allocator of the shared memory through which one process sends tensors to another. Pure.

First fit over a sorted list of holes: requests of one model have one size, so that the first hole fits nearly always.
Low addresses are reused first, and only pages that were used take memory.
"""

from bisect import bisect_left, insort
from typing import Final

ALIGNMENT: Final = 64  # bytes: a cache line, and more than any datatype needs


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Arena:
    """Blocks within `size` bytes. Used by the sending process alone: the receiver says what it no longer reads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._holes = [(0, size)]  # (start, length), by start; no two touch
        self._blocks: dict[int, int] = {}

    def allocate(self, size: int) -> int | None:
        """Return the offset of a block, or None while there is no room for it."""
        size = aligned(size)
        for index, (start, length) in enumerate(self._holes):
            if length > size:
                self._holes[index] = (start + size, length - size)
            elif length == size:
                del self._holes[index]
            else:
                continue
            self._blocks[start] = size
            return start
        return None

    def release(self, offset: int) -> None:
        """Free a block, and join it with the holes that it touches."""
        start, length = offset, self._blocks.pop(offset)
        index = bisect_left(self._holes, (start, 0))
        if index < len(self._holes) and self._holes[index][0] == start + length:
            length += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == start:
            start, before = self._holes.pop(index - 1)
            length += before
        insort(self._holes, (start, length))
