"""CPU and memory of the machine from /proc, read when `/metrics` is scraped."""

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
