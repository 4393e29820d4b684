"""Readings of this machine that several processes take: free ports, memory, the end of a log file."""

import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"


def free_port(preferred: int = 0) -> int:
    """Return `preferred` if it is free on loopback, else any free port."""
    with suppress(OSError), socket.socket() as probe:
        probe.bind((LOOPBACK, preferred))
        return int(probe.getsockname()[1])
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different free ports of loopback. Another process may take one before the caller binds it."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]


def meminfo_bytes(meminfo: str, field: str) -> int | None:
    """Return a field of /proc/meminfo, such as MemTotal, in bytes; None: there is none."""
    lines = (line.split() for line in meminfo.splitlines() if line.startswith(f"{field}:"))
    return next((int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdigit()), None)


def last_lines(path: Path, count: int = 0, *, since: int = 0, max_bytes: int = 0, whole: bool = False) -> list[str]:
    """Return the last `count` lines of a file, 0: all of them, within its last `max_bytes`, 0: without a limit.

    Only what was written after offset `since` counts; a shorter file was rotated and counts from its beginning.
    `whole` leaves out a first line that the limit cuts. Raise OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        begin = max(since if since <= length else 0, length - max_bytes if max_bytes else 0)
        file.seek(begin)
        lines = file.read(length - begin).decode(errors="replace").splitlines()
    return lines[1:] if whole and begin not in (0, since) else lines[-count:]
