"""How a call to a replica ended, as the replica said it.

A replica may end a call before the client has said everything: a method that it lacks, a stream that it has seen enough
of. What is written after that fails, and grpcio tells the failed write as the call's status, before or instead of the
one that came. So every status is looked at when it is told, and the replica's own is kept.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

CANNOT_WRITE: Final = "Internal error from Core"  # details of the status that grpcio makes up
SETTLE_S: Final = 1.0


class Ending:
    """`code`, `details` and `trailers` are known once `come` has returned."""

    def __init__(self, call: Any) -> None:
        self.code: Any = None
        self.details = ""
        self.trailers: tuple[tuple[str, str | bytes], ...] = ()
        self._told, self._settled = asyncio.Event(), asyncio.Event()
        call.add_done_callback(self._hear)

    async def come(self) -> None:
        await self._told.wait()
        try:
            await asyncio.wait_for(self._settled.wait(), SETTLE_S)
        except TimeoutError:
            return

    def _hear(self, call: Any) -> None:
        """Called each time that a status is told; those that follow a settled one are left alone."""
        if self._settled.is_set():
            return
        self.code, self.details = _at_once(call.code()), _at_once(call.details()) or ""
        self.trailers = tuple(_at_once(call.trailing_metadata()) or ())
        self._told.set()
        if self.details != CANNOT_WRITE:
            self._settled.set()


def _at_once(known: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for: the status of a call that is done."""
    try:
        known.send(None)
    except StopIteration as done:
        return done.value
    known.close()
    raise RuntimeError("the status of a call that is done must be known")
