"""Protocol whose reading can be paused: flow control between the client's and the replica's connection."""

import asyncio
from typing import cast


class FlowControlledProtocol(asyncio.Protocol):
    __slots__ = ("_paused", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)  # set by connection_made
        self._paused = False

    def pause(self) -> None:
        """Stop reading until `resume`: the other connection cannot take more."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
