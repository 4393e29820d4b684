"""The gateway's process, as the control process starts it and sees it end."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.gateway.detached import start_detached
from pilotlight.targets.local.home import Home

START_S: Final = 40.0  # one that has ended is known at once; one that lives may be slow on a busy machine
KILL_S: Final = 5.0  # beyond the drain, before a gateway that does not end is killed
LAST_LINES: Final = 10


def gateway_command(home: Home, respawn: Sequence[str] = ()) -> tuple[str, ...]:
    """What starts a gateway; `respawn` is the command by which it brings the control process back."""
    words = (sys.executable, "-m", "pilotlight.gateway", "--home", str(home.root))
    return (*words, "--respawn", shlex.join(respawn)) if respawn else words


class Starter:
    """Knows of a gateway that was started and has not greeted yet: nobody else would end it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = tuple(command), log
        self._ungreeted = 0

    async def start(self, connect: Callable[[], Awaitable[bool]]) -> None:
        """Returns when `connect` has reached it. Tells the end of its log when none comes up."""
        status: list[int] = []
        self._ungreeted = start_detached(self._command, self._log, status.append)
        until = asyncio.get_running_loop().time() + START_S
        while not await connect():
            if status or asyncio.get_running_loop().time() > until:
                self.give_up(status)
                why = f"it ended with status {status[0]}" if status else f"it did not answer within {START_S:g} s"
                raise PlatformError(f"the gateway did not start: {why}; its log ends:\n{_tail(self._log)}")
            await asyncio.sleep(0.005)
        self._ungreeted = 0

    def give_up(self, status: Sequence[int] = ()) -> None:
        """`status`: of one that has ended by itself."""
        if self._ungreeted and not status:
            with suppress(ProcessLookupError):
                os.kill(self._ungreeted, signal.SIGTERM)
        self._ungreeted = 0


async def see_end(pid: int, disconnected: asyncio.Event, seconds: float) -> None:
    """It closes the connection when nothing is in flight, and is gone a moment later, or else killed."""
    with suppress(TimeoutError):
        await asyncio.wait_for(disconnected.wait(), seconds)
    until = asyncio.get_running_loop().time() + (KILL_S if disconnected.is_set() else 0.0)
    with suppress(ProcessLookupError, PermissionError):
        while asyncio.get_running_loop().time() < until:
            os.kill(pid, 0)
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
    return ""
