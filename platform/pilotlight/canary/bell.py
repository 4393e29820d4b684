"""What wakes the loop of canaries, and ends it: rung by whoever keeps them. Light, since a loop may never be needed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

IDLE_S: Final = 10.0  # where nobody rings, canaries that others have started are found by looking
LEAVE_S: Final = 5.0  # for what the loop is about; what it does not finish another runner does


class Bell:
    """What wakes the loop, and ends it. `rings`: every change is told, so that nobody has to look without one."""

    def __init__(self, *, rings: bool = False) -> None:
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._rings = rings

    def ring(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def wait(self, seconds: float | None) -> bool:
        """Whether to go on; None: until something happens."""
        self._woken.wait(seconds if seconds is not None or self._rings else IDLE_S)
        self._woken.clear()
        return not self.stopped


@asynccontextmanager
async def looked_after(bell: Bell, follow: Callable[[], None]) -> AsyncIterator[None]:
    """By `follow` in a thread, which asks the platform like any client, until the block ends."""
    thread = threading.Thread(target=follow, name="canaries", daemon=True)
    thread.start()
    try:
        yield
    finally:
        bell.stop()
        await asyncio.to_thread(thread.join, LEAVE_S)
