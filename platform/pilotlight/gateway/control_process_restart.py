"""Restart of the control process by the gateway, which outlives it; start of a process that outlives its parent."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from pilotlight.gateway.metrics_and_reports import log

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0
SETTLED_S: Final = 30.0  # a control process that stayed this long does not crash at every start


class Respawn:
    """Restart of the control process, with backoff, while none is connected.

    No timer runs while one is connected, or without a command.
    """

    def __init__(self, command: Sequence[str], start: Callable[[Sequence[str]], object] | None = None) -> None:
        self._command = tuple(command)
        self._start = start or self._spawn
        self._started: dict[int, list[int]] = {}  # pids started here, each with its exit status once it has one
        self._attempt = 0
        self._connected_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connected(self, pid: int = 0) -> None:
        """Stop restarting: a control process has connected; `pid` 0: unknown.

        Others that were started here are terminated: one that has not checked yet if another runs would take over as
        soon as that one exits.
        """
        self.cancel()
        self._connected_at = asyncio.get_running_loop().time()
        for other, status in self._started.items():
            if pid and other != pid and not status:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)

    def disconnected(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._connected_at >= SETTLED_S:
            self._attempt = 0
        if self._command:
            self._timer = loop.call_later(backoff(self._attempt), self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        """Start the command. An extra process does no harm: it exits if another runs, and `connected` terminates it."""
        self._attempt += 1
        self._timer = asyncio.get_running_loop().call_later(backoff(self._attempt), self._fire)
        log("control.respawn", "the control process is gone; starting it again", attempt=self._attempt)
        try:
            self._start(self._command)
        except OSError as error:
            log("control.respawn_failed", f"{self._command[0]}: {error}", level="ERROR")

    def _spawn(self, command: Sequence[str]) -> None:
        self._started = {pid: status for pid, status in self._started.items() if not status}
        status: list[int] = []
        self._started[start_detached(command, None, status.append)] = status


def start_detached(command: Sequence[str], log: Path | None, ended: Callable[[int], None] | None = None) -> int:
    """Start a process in a session of its own and return its pid. Output is appended to `log`; None: inherited.

    A thread waits for its exit, so that it does not stay a zombie, independent of event loops. `ended` is called on
    that thread with the exit status.
    """
    output = None if log is None else _open_log(log)
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    finally:
        if output is not None:
            output.close()

    def wait() -> None:
        status = process.wait()
        if ended is not None:
            ended(status)

    threading.Thread(target=wait, daemon=True, name=f"waits for {process.pid}").start()
    return process.pid


def backoff(attempt: int) -> float:
    """Return 1, 2, 4 … 30 seconds before the attempt, counted from 0."""
    return min(FIRST_S * (1 << min(attempt, 10)), LONGEST_S)


def _open_log(log: Path) -> BinaryIO:
    """Open the log file, or /dev/null: a full disk must not prevent the start."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(log, "ab", opener=partial(os.open, mode=0o600))
    except OSError:
        return open(os.devnull, "ab")
