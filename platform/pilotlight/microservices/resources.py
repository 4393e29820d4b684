"""CPUs and memory that a process of this machine may use, from its cgroup and the kernel."""

import os
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60  # cgroup v1 writes "no limit" as a very large number


def cpus(groups: Path = _GROUPS) -> float:
    """Return the usable CPUs: CPU affinity or the cgroup's quota, whichever is less."""
    allowed = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    share = cpu_share(_text(groups / "cpu.max"))
    if share is None:
        older = groups / "cpu"
        share = cpu_share(f"{_text(older / 'cpu.cfs_quota_us')} {_text(older / 'cpu.cfs_period_us')}")
    return min(allowed, share) if share is not None else allowed


def cpu_share(text: str) -> float | None:
    """Parse a CPU quota: `50000 100000` is half a CPU; `max 100000` and `-1 100000` are no limit."""
    words = text.split()
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def memory(groups: Path = _GROUPS, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the available bytes within the cgroup's limit; None: unknown."""
    limits = [_bytes(_text(groups / "memory.max")), _bytes(_text(groups / "memory" / "memory.limit_in_bytes"))]
    lines = [line.split() for line in _text(meminfo).splitlines() if line.startswith("MemAvailable:")]
    limits += [int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdigit()]
    known = [each for each in limits if each is not None]
    return min(known) if known else None


def _bytes(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
