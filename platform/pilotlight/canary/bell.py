"""Wake-up event and thread of the canary controller. Imported without the controller, which may never be needed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

IDLE_S: Final = 10.0  # polling interval if changes by other processes are not notified
JOIN_TIMEOUT_S: Final = 5.0  # for the current tick; another runner continues an unfinished one


class WakeEvent:
    """Event that wakes and stops the controller. `notified`: every change sets it, so that no polling is needed."""

    def __init__(self, *, notified: bool = False) -> None:
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._notified = notified

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def wait(self, seconds: float | None) -> bool:
        """Wait for a wake-up, at most `seconds`; return False when stopped. None waits without limit if notified."""
        self._woken.wait(seconds if seconds is not None or self._notified else IDLE_S)
        self._woken.clear()
        return not self.stopped


@asynccontextmanager
async def controller_thread(wake: WakeEvent, run: Callable[[], None]) -> AsyncIterator[None]:
    """Run `run` in a thread until the block ends."""
    thread = threading.Thread(target=run, name="canaries", daemon=True)
    thread.start()
    try:
        yield
    finally:
        wake.stop()
        await asyncio.to_thread(thread.join, JOIN_TIMEOUT_S)
