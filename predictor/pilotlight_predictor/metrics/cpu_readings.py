"""CPU and memory of the machine from /proc, read when `/metrics` is scraped, and the memory that its cgroups allow."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pilotlight.wire.machine import meminfo_bytes


class CpuTimes(NamedTuple):
    """Clock ticks since boot, over all cores."""

    busy: int
    total: int


class CpuSample(NamedTuple):
    utilization: float
    memory_total_bytes: int
    memory_used_bytes: int


def parse_cpu_times(stat: str) -> CpuTimes:
    """Parse the first line of /proc/stat: `cpu user nice system idle iowait irq softirq steal guest guest_nice`.

    Guest time is part of user time, so only the first eight count.
    """
    ticks = [int(word) for word in stat.partition("\n")[0].split()[1:9]]
    return CpuTimes(busy=sum(ticks) - sum(ticks[3:5]), total=sum(ticks))


def machine_bytes(meminfo: str, limits: Iterable[str]) -> int:
    """Memory of the machine (/proc/meminfo), or the lowest cgroup limit if that is less."""
    total = meminfo_bytes(meminfo, "MemTotal") or 0
    return min([total, *(int(limit) for limit in limits if limit.strip().isdigit())])


def limit_files(cgroup: str) -> list[str]:
    """Memory limit files of the cgroup in /proc/self/cgroup and of all its parents, up to the mount's root.

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


def read_machine_bytes() -> int:
    """Return the memory that this process may use; 0 if /proc cannot be read."""
    return machine_bytes(_read("/proc/meminfo"), map(_read, limit_files(_read("/proc/self/cgroup"))))


def _read(file: str) -> str:
    """Text of a file; empty if it does not exist."""
    with suppress(OSError):
        return Path(file).read_text()
    return ""


def utilization(before: CpuTimes, after: CpuTimes) -> float:
    elapsed = after.total - before.total
    return min(1.0, max(0.0, (after.busy - before.busy) / elapsed)) if elapsed > 0 else 0.0


class CpuMeter:
    """Utilisation between two reads; the first covers the time since boot."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = CpuTimes(0, 0)

    def read(self) -> CpuSample | None:
        """Return None if there is no readable /proc."""
        try:
            after = parse_cpu_times((self._proc / "stat").read_text())
            meminfo = (self._proc / "meminfo").read_text()
        except (OSError, ValueError):
            return None
        total, available = meminfo_bytes(meminfo, "MemTotal"), meminfo_bytes(meminfo, "MemAvailable")
        if total is None or available is None:
            return None
        before, self._before = self._before, after
        return CpuSample(utilization(before, after), total, total - available)
