"""Status of a call as the replica sent it.

A replica may end a call before the client has sent everything: an unknown method, or a stream that it stops reading.
Further writes fail, and grpcio reports the failed write as the call's status, before or instead of the received one. So
every reported status is examined, and the replica's own is used.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

CANNOT_WRITE: Final = "Internal error from Core"  # details of a status that grpcio makes up
SETTLE_S: Final = 1.0


class CallStatus:
    """`code`, `details` and `trailers` are set once `wait` has returned."""

    def __init__(self, call: Any) -> None:
        self.code: Any = None
        self.details = ""
        self.trailers: tuple[tuple[str, str | bytes], ...] = ()
        self._received, self._settled = asyncio.Event(), asyncio.Event()
        call.add_done_callback(self._on_status)

    async def wait(self) -> None:
        await self._received.wait()
        try:
            await asyncio.wait_for(self._settled.wait(), SETTLE_S)
        except TimeoutError:
            return

    def _on_status(self, call: Any) -> None:
        """Called for each reported status; ignored after the replica's own."""
        if self._settled.is_set():
            return
        self.code, self.details = _completed_result(call.code()), _completed_result(call.details()) or ""
        self.trailers = tuple(_completed_result(call.trailing_metadata()) or ())
        self._received.set()
        if self.details != CANNOT_WRITE:
            self._settled.set()


def _completed_result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not wait: the status of a finished call."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("the status of a call that is done must be known")
