"""Budget for the bytes that requests, tensors and responses hold in memory, all of them together."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Final

from pilotlight_predictor.errors import QueueFull

LARGE: Final = 1 << 16  # bytes: what is smaller leaves no gaps worth a search


class ByteBudget:
    """Count of bytes in flight with a limit. Used on the event loop.

    A request that needs more than is left is refused, never queued: waiting requests would hold what others wait for.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes_in_flight = 0
        self._freed = 0  # bytes since malloc returned its free memory to the system

    @property
    def left(self) -> int:
        return self.limit - self.bytes_in_flight

    @property
    def scarce(self) -> bool:
        """Whether more than half of the budget is used."""
        return self.bytes_in_flight > self.limit >> 1

    def check_capacity(self, length: int) -> None:
        if self.bytes_in_flight + length > self.limit:
            raise self.over_budget(length)

    def over_budget(self, length: int) -> QueueFull:
        """Return the error of a request or response of `length` bytes that does not fit the budget."""
        held = f"requests and unread responses hold {self.bytes_in_flight} bytes of {self.limit}"
        return QueueFull(f"{held} (--max-bytes-in-flight), {length} more do not fit; retry later")

    def reserve(self, length: int) -> int | None:
        """As `take`, but return None instead of raising; else the bytes to release."""
        if self.bytes_in_flight + length > self.limit:
            return None
        self.bytes_in_flight += length
        return length

    def take(self, length: int) -> None:
        self.check_capacity(length)
        self.bytes_in_flight += length

    def release(self, length: int) -> None:
        self.bytes_in_flight -= length
        if length > LARGE:
            self._note_freed(length)

    def _note_freed(self, length: int) -> None:
        """Return free memory to the system while memory is scarce, and once after that.

        malloc keeps what large requests leave behind, in gaps of several arenas: up to as much as the budget again.
        """
        if self.bytes_in_flight + length > self.limit >> 1 or self._freed:
            self._freed += length
        if self._freed > self.limit >> 4 or (self._freed and not self.bytes_in_flight):
            self._freed = 0
            Thread(target=trim, name="pilotlight-trim", daemon=True).start()

    @contextmanager
    def hold(self, length: int) -> Iterator[None]:
        """Reserve bytes within the context. Raise QueueFull if the budget does not suffice."""
        self.take(length)
        try:
            yield
        finally:
            self.release(length)


def trim() -> None:
    """Return memory that malloc keeps to the system: a few ms, in which other threads may have to wait for malloc."""
    import ctypes

    with suppress(OSError, AttributeError):  # of another libc
        ctypes.CDLL(None).malloc_trim(0)
