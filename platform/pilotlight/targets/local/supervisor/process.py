"""Who a process is, whether it still is, what it uses, and when it ends: read from the kernel, or asked of `ps`.

A number alone does not name a process, since numbers come again. Boot id and start ticks do, over the death of
whoever started it and over a restart of the machine.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.targets.local.home import ENV_HOME, Home
from pilotlight.targets.local.supervisor import ps
from pilotlight.targets.local.supervisor.replica import Usage

ENV_REPLICA: Final = "PILOTLIGHT_REPLICA"
POLL_S: Final = 0.1  # where the kernel has no pidfd
_PROC: Final = Path("/proc")


class Identity(NamedTuple):
    pid: int
    boot_id: str
    start_ticks: int

    @property
    def alive(self) -> bool:
        return self.start_ticks > 0 and identify(self.pid) == self


@cache
def boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identify(pid: int) -> Identity | None:
    """None: no such process, or one that has ended and only waits to be reaped."""
    if not _PROC.exists():
        began = ps.started_at(pid) if pid > 0 else 0
        return Identity(pid, boot_id(), began) if began else None
    fields = _stat(pid)
    if not fields or fields[0] in ("Z", "X"):
        return None
    return Identity(pid, boot_id(), int(fields[19]))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second is a name that may hold anything."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split() if pid > 0 else []
    except OSError:
        return []


def age_s(identity: Identity) -> float:
    """How long it has run, by the clock that no user can set where there is one."""
    if not _PROC.exists():
        return max(0.0, time.time() - identity.start_ticks)
    started = identity.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


class ExitWatch:
    """Calls `ended` once, from the event loop, when the process has ended. No thread and, on Linux, no polling."""

    def __init__(self, pid: int, ended: Callable[[], None]) -> None:
        self._pid, self._ended = pid, ended
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            self._fd = -1
            self._timer = self._loop.call_later(0, self._poll)
        else:
            self._loop.add_reader(self._fd, self._finish)

    def send(self, number: signal.Signals) -> None:
        """To this very process: the number cannot have passed to another."""
        with suppress(ProcessLookupError, PermissionError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif self._timer is not None:
                os.kill(self._pid, number)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _poll(self) -> None:
        try:
            os.kill(self._pid, 0)
        except OSError:
            self._finish()
        else:
            self._timer = self._loop.call_later(POLL_S, self._poll)

    def _finish(self) -> None:
        self.close()
        self._ended()


def usage(pid: int, *, descendants: bool = True) -> Usage:
    """Summed over the process and its descendants; of those that ended, only the time that was waited for."""
    if not _PROC.exists():
        return ps.usage(pid)
    ticks = os.sysconf("SC_CLK_TCK")
    seconds, resident = 0.0, 0
    for member in family(pid) if descendants else (pid,):
        fields = _stat(member)
        if fields:
            own = fields[11:15] if member == pid else fields[11:13]
            seconds += sum(map(int, own)) / ticks
            resident += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return Usage(seconds, resident)


def family(pid: int) -> Iterator[int]:
    """The process and all that descend from it."""
    yield pid
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from family(int(child))


def pilots(home: Home) -> Iterator[int]:
    """Pilot lights of this home, whoever lit them: known by the log that they alone write to."""
    for folder in _own_processes():
        with suppress(OSError):
            target = Path(os.readlink(folder / "fd/2"))
            if target.parent == home.run and target.name.startswith("pilot-"):
                yield int(folder.name)


def _own_processes() -> Iterator[Path]:
    uid, own = os.getuid(), os.getpid()
    for folder in _PROC.iterdir() if _PROC.exists() else ():
        if folder.name.isdecimal() and int(folder.name) != own:
            with suppress(OSError):
                if folder.stat().st_uid == uid:
                    yield folder


def marked(home: Home) -> Iterator[tuple[int, str]]:
    """Processes of this user that belong to this home, each with its replica's id, whoever their parents are.

    A plain start carries the marks in its environment. A fork of a pilot light shows that one's environment instead,
    and is known by the log that it writes to.
    """
    for folder in _own_processes():
        with suppress(OSError):
            if replica := _mark(folder, home):
                yield int(folder.name), replica


def _mark(folder: Path, home: Home) -> str:
    variables = (folder / "environ").read_bytes().split(b"\0")
    if f"{ENV_HOME}={home.root}".encode() not in variables:
        return ""
    start = f"{ENV_REPLICA}=".encode()
    named = next((value[len(start) :].decode() for value in variables if value.startswith(start)), "")
    return named or _logs_to(folder, home)


def _logs_to(folder: Path, home: Home) -> str:
    target = Path(os.readlink(folder / "fd/2"))
    ours = target.is_relative_to(home.logs) and len(target.relative_to(home.logs).parts) == 3
    return target.stem if ours and target.suffix == ".log" else ""
