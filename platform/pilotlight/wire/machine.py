"""Readings of this machine that several processes take: its user, free ports, CPUs, memory, the end of a log file."""

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

LOOPBACK = "127.0.0.1"
CONNECT_S = 3.0
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def user_name() -> str:
    """Return the user who runs this process; empty: the system has no name for it."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine; empty: the system has none."""
    return _text(Path("/proc/sys/kernel/random/boot_id"))


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


def can_connect(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True


def meminfo_bytes(meminfo: str, field: str) -> int | None:
    """Return a field of /proc/meminfo, such as MemTotal, in bytes; None: there is none."""
    lines = (line.split() for line in meminfo.splitlines() if line.startswith(f"{field}:"))
    return next((int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdigit()), None)


def usable_cpus(cgroup: Path = CGROUP) -> float:
    """Return the CPUs of this process: its affinity, or its cgroup's quota where that is less."""
    allowed = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    older = cgroup / "cpu"
    quotas = _text(cgroup / "cpu.max"), f"{_text(older / 'cpu.cfs_quota_us')} {_text(older / 'cpu.cfs_period_us')}"
    return min([allowed, *(share for text in quotas if (share := cpu_share(text)) is not None)])


def cpu_share(text: str) -> float | None:
    """Parse a CPU quota: `50000 100000` is half a CPU; `max 100000` and `-1 100000` are no limit."""
    words = text.split()
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def available_memory() -> int | None:
    """Return the available bytes within the limits of this process's cgroups; None: unknown."""
    return limited_memory(_text(MEMINFO), _memory_limits(), "MemAvailable") or None


def total_memory() -> int:
    """Return the bytes of memory that this process may use; 0 if /proc cannot be read."""
    return limited_memory(_text(MEMINFO), _memory_limits())


def limited_memory(meminfo: str, limits: Iterable[str], field: str = "MemTotal") -> int:
    """Return a field of /proc/meminfo, or the lowest limit of the cgroups if that is less."""
    size = meminfo_bytes(meminfo, field) or 0
    return min([size, *(int(limit) for limit in limits if limit.strip().isdigit())])


def _memory_limits() -> Iterator[str]:
    return (_text(Path(file)) for file in limit_files(_text(Path("/proc/self/cgroup"))))


def limit_files(cgroup: str) -> list[str]:
    """Return the memory limit files of the cgroup in /proc/self/cgroup and of all its parents, up to the mount's root.

    In a container the mount's root is the container's own group.
    """
    files: list[str] = []
    for _, kinds, path in (line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2):
        if kinds and "memory" not in kinds.split(","):
            continue
        mount, name = ("/memory", "memory.limit_in_bytes") if kinds else ("", "memory.max")
        steps = [step for step in path.split("/") if step]
        groups = ["".join(f"/{step}" for step in steps[:depth]) for depth in range(len(steps), -1, -1)]
        files += [f"/sys/fs/cgroup{mount}{group}/{name}" for group in groups]
    return files


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


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
