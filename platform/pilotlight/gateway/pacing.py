"""A connection whose reading can be stopped for a while: whoever reads too slowly stops whoever writes to it."""

import asyncio
from typing import cast


class Paced(asyncio.Protocol):
    __slots__ = ("_paused", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)  # there from the first callback on
        self._paused = False

    def pause(self) -> None:
        """What comes is not taken up as fast as it comes."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
