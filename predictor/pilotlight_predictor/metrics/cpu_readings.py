"""CPU and memory usage of the machine from /proc, read when `/metrics` is scraped."""

from pathlib import Path
from typing import NamedTuple


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


def parse_memory(meminfo: str) -> tuple[int, int]:
    """Total and used bytes; reclaimable memory does not count as used."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, total - available


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
            memory_total, memory_used = parse_memory((self._proc / "meminfo").read_text())
        except (OSError, ValueError, KeyError):
            return None
        before, self._before = self._before, after
        return CpuSample(utilization(before, after), memory_total, memory_used)
