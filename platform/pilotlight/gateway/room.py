"""Budget for request bodies buffered in memory, over all services of a data plane.

Queues are limited per revision, which does not limit a process that serves many. Requests that would have to wait are
rejected once the budget is spent, so that the process does not run out of memory with all held requests. Small ones are
still held: a service must wake up even if others have used up the budget.
"""

from typing import Final

MAX_BUFFERED_BYTES: Final = 1 << 30
SMALL_REQUEST_BYTES: Final = 1 << 12  # a thousand of them take 4 MiB


class BufferBudget:
    __slots__ = ("limit", "used")

    def __init__(self, limit: int = MAX_BUFFERED_BYTES) -> None:
        self.used = 0
        self.limit = limit

    @property
    def full(self) -> bool:
        return self.used > self.limit

    def check(self, size: int) -> str:
        """Return why a request with `size` buffered bytes may not wait; empty: it may."""
        if not self.full or size <= SMALL_REQUEST_BYTES:
            return ""
        return f"requests that wait here take more than {self.limit >> 20} MiB already; try again later"
