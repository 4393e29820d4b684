"""Identity of a process, from /proc, or from `ps` where there is none (macOS; slow).

A pid alone does not identify a process, since pids are reused. With boot id and start ticks it does, across restarts of
the control process and of the machine.
"""

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.wire.machine import boot_id

PROC: Final = Path("/proc")


class Identity(NamedTuple):
    pid: int
    boot_id: str
    start_ticks: int

    @property
    def alive(self) -> bool:
        return self.start_ticks > 0 and identify(self.pid) == self


def identify(pid: int) -> Identity | None:
    """Return the identity of a process; None: no such process, or a zombie."""
    if not PROC.exists():
        began = _started_at(pid) if pid > 0 else 0
        return Identity(pid, boot_id(), began) if began else None
    fields = stat_fields(pid)
    if not fields or fields[0] in ("Z", "X"):
        return None
    return Identity(pid, boot_id(), int(fields[19]))


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; the second, the name, may contain anything."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split() if pid > 0 else []
    except OSError:
        return []


def _started_at(pid: int) -> int:
    """Return the start time in seconds since the epoch; 0: no such process, or a zombie."""
    state, _, began = query_ps(pid, "stat=,lstart=").partition(" ")
    if not state or state.startswith("Z"):
        return 0
    with suppress(ValueError):
        return int(time.mktime(time.strptime(" ".join(began.split()), "%a %b %d %H:%M:%S %Y")))
    return 0


def query_ps(pid: int, columns: str) -> str:
    command = ["ps", "-o", columns, "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, env={"LC_ALL": "C"}, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
