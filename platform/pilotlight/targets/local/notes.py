"""What the control process writes down as things happen by themselves, on a disk that may be full.

A deploy that cannot be stored is refused. A replica that starts, answers or ends does so all the same: the note of it
waits here until there is room, and nothing that serves waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pilotlight.errors import PlatformError

RETRY_S: Final = 1.0
log = logging.getLogger("pilotlight.notes")


class Notes:
    """Used from one event loop. Notes are written in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told = False

    def write(self, about: str, note: Callable[[], None]) -> None:
        """A later note about the same thing takes the place of one that still waits."""
        self._waiting.pop(about, None)
        self._waiting[about] = note
        if self._timer is None:
            self._flush()

    def close(self) -> None:
        """The last try: what cannot be written is found out by whoever comes next."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        while self._waiting:
            about, note = next(iter(self._waiting.items()))
            try:
                note()
            except PlatformError as error:
                self._put_off(error)
                return
            del self._waiting[about]
        self._told = False

    def _put_off(self, error: PlatformError) -> None:
        """Said once, until all is written."""
        if not self._told:
            log.warning("%s; what happens meanwhile is written down afterwards", error)
            self._told = True
        self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._flush)
