"""Gateway process: started by the control process, and awaited at its exit."""

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
from pilotlight.gateway.respawn import start_detached
from pilotlight.targets.local.home import Home

START_S: Final = 40.0  # an exit is noticed at once; a start may be slow on a busy machine
KILL_S: Final = 5.0  # beyond the drain, before a gateway that does not end is killed
LAST_LINES: Final = 10


def gateway_command(home: Home, respawn: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the gateway's command line; `respawn` is the command by which it restarts the control process."""
    command = (sys.executable, "-m", "pilotlight.gateway", "--home", str(home.root))
    return (*command, "--respawn", shlex.join(respawn)) if respawn else command


class GatewayStarter:
    """Starts a gateway, and remembers one that has not connected yet so that it can be ended."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = tuple(command), log
        self._unconnected_pid = 0

    async def start(self, connect: Callable[[], Awaitable[bool]]) -> None:
        """Start a gateway; return when `connect` has reached it. Raise PlatformError with the end of its log."""
        status: list[int] = []
        self._unconnected_pid = start_detached(self._command, self._log, status.append)
        until = asyncio.get_running_loop().time() + START_S
        while not await connect():
            if status or asyncio.get_running_loop().time() > until:
                self.abandon(status)
                why = f"it ended with status {status[0]}" if status else f"it did not answer within {START_S:g} s"
                raise PlatformError(f"the gateway did not start: {why}; its log ends:\n{_tail(self._log)}")
            await asyncio.sleep(0.005)
        self._unconnected_pid = 0

    def abandon(self, status: Sequence[int] = ()) -> None:
        """End a gateway that has not connected, unless it has exited with `status`."""
        if self._unconnected_pid and not status:
            with suppress(ProcessLookupError):
                os.kill(self._unconnected_pid, signal.SIGTERM)
        self._unconnected_pid = 0


async def wait_exit(pid: int, disconnected: asyncio.Event, seconds: float) -> None:
    """Wait for the gateway to disconnect and exit; kill it after `seconds`, or KILL_S after the disconnect."""
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
