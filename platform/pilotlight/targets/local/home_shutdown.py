"""Shutdown of a home by its processes, where no control process can do it: its state is damaged or was removed."""

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pilotlight.errors import TimedOut
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.process_inspection import CONTROL, DELETED, GATEWAY, LOG_WRITER, home_processes

KILL_S: Final = 5.0  # for the kernel to end killed processes
POLL_S: Final = 0.05
_SERVING: Final = ("replica ", "pilot light", "prometheus")


def next_signals(processes: Mapping[int, str], signalled: Collection[int], late: bool) -> dict[int, signal.Signals]:
    """Return the signals to send now, by pid.

    First control processes, which restart the others; then the gateway, whose requests need their replicas; then
    replicas; at last the log writer. Each gets SIGTERM once: a second one would make a predictor drop its requests.
    """
    if late:
        return dict.fromkeys(processes, signal.SIGKILL)
    serving = {pid for pid, role in processes.items() if role.startswith(_SERVING)}
    gateways, writers = ({pid for pid, role in processes.items() if role == each} for each in (GATEWAY, LOG_WRITER))
    restarting = processes.keys() - serving - gateways - writers
    following = gateways or serving or writers
    return {
        **dict.fromkeys(restarting, signal.SIGKILL),
        **{pid: signal.SIGTERM for pid in following if pid not in signalled},
    }


def end_processes(home: Home, grace_s: float) -> dict[int, str]:
    """End every process of a home and return them with their roles; after `grace_s` seconds they are killed."""
    ended: dict[int, str] = {}
    signalled: set[int] = set()
    until = time.monotonic() + grace_s
    while processes := home_processes(home):
        now = time.monotonic()
        if now > until + KILL_S:
            names = ", ".join(f"{role} (pid {pid})" for pid, role in processes.items())
            raise TimedOut(f"still running: {names}", "stop them by pid, as their user")
        ended.update(processes)
        for pid, number in next_signals(processes, signalled, now > until).items():
            signalled.add(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        time.sleep(POLL_S)
    return ended


def processes_of_removed_home(home: Home) -> dict[int, str]:
    """Return the processes of a platform whose state folder was removed, moved or replaced while it runs; else none."""
    processes = home_processes(home)
    control = (pid for pid, role in processes.items() if role == CONTROL)
    return processes if any(_holds_other_lock(pid, home) for pid in control) else {}


def _holds_other_lock(pid: int, home: Home) -> bool:
    """Whether a control process holds a lock file that is not the present one of its home."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if Path(os.readlink(descriptor).removesuffix(DELETED)).name == home.lock.name:
                    return not home.lock.exists() or not descriptor.samefile(home.lock)
    return False
