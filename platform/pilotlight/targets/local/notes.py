"""Write-behind queue for state that must not block serving, on a disk that may be full.

A deploy that cannot be stored is refused. A replica starts, becomes ready or ends regardless; its record waits here and
is retried every RETRY_S seconds.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pilotlight.errors import PlatformError

RETRY_S: Final = 1.0
log = logging.getLogger("pilotlight.notes")


class WriteBehindQueue:
    """Pending writes in order of arrival. Used from one event loop."""

    def __init__(self) -> None:
        self._pending: dict[str, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    def put(self, key: str, write: Callable[[], None]) -> None:
        """Write now if possible, else later; replaces a pending write with the same key."""
        self._pending.pop(key, None)
        self._pending[key] = write
        if self._timer is None:
            self._flush()

    def close(self) -> None:
        """Try a last time; what cannot be written is lost, and the next control process recovers without it."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        while self._pending:
            key, write = next(iter(self._pending.items()))
            try:
                write()
            except PlatformError as error:
                if not self._warned:  # once, until all is written
                    log.warning("%s; what happens meanwhile is written down afterwards", error)
                    self._warned = True
                self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._flush)
                return
            del self._pending[key]
        self._warned = False
