"""Process start time and usage from `ps`, for systems without /proc (macOS); slow."""

import subprocess
import time
from contextlib import suppress

from pilotlight.targets.local.supervisor.replica import Usage


def started_at(pid: int) -> int:
    """Return the start time in seconds since the epoch; 0: no such process, or a zombie."""
    state, _, began = _query(pid, "stat=,lstart=").partition(" ")
    if not state or state.startswith("Z"):
        return 0
    with suppress(ValueError):
        return int(time.mktime(time.strptime(" ".join(began.split()), "%a %b %d %H:%M:%S %Y")))
    return 0


def usage(pid: int) -> Usage:
    """Return the usage of the process without its descendants."""
    resident, _, clock = _query(pid, "rss=,time=").partition(" ")
    return Usage(_seconds(clock.strip()), int(resident) * 1024) if resident.isdecimal() else Usage()


def _seconds(clock: str) -> float:
    """[days-][hours:]minutes:seconds[.hundredths]"""
    days, _, rest = clock.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = total * 60 + float(part)
    return total + 86400 * int(days or 0)


def _query(pid: int, columns: str) -> str:
    command = ["ps", "-o", columns, "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, env={"LC_ALL": "C"}, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
