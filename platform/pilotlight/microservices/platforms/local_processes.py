"""Termination of a process and its session, safe against PID reuse."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.targets.local.supervisor.process import Identity

STOP_S: Final = 40.0  # a predictor drains within 30
POLL_S: Final = 0.02


def end(identity: Identity) -> bool:
    """Send SIGTERM, then SIGKILL to its session. A pidfd prevents PID reuse. False: it had already ended."""
    sent = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _send(identity, number):
            return sent
        sent = True
        if within(STOP_S, lambda: not identity.alive):
            return sent
    raise PlatformError(f"process {identity.pid} does not end", f"kill -9 {identity.pid}")


def _send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal. False: it has already ended."""
    with suppress(ProcessLookupError):
        held = os.pidfd_open(identity.pid) if hasattr(os, "pidfd_open") else -1
        try:
            if not identity.alive:
                return False
            if number is signal.SIGKILL:
                os.killpg(os.getpgid(identity.pid), number)
            elif held >= 0:
                signal.pidfd_send_signal(held, number)
            else:
                os.kill(identity.pid, number)
            return True
        finally:
            if held >= 0:
                os.close(held)
    return False


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Poll the condition; return whether it held within `seconds`."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True
