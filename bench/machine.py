"""The machine a run happens on: its description for the report, and which core serves and which core loads."""

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Cores:
    """The core of the server and the core of the load; None where there are too few to keep them apart."""

    server: int | None
    load: int | None

    @property
    def pinned(self) -> bool:
        return self.server is not None


def choose_cores(available: list[int], siblings: dict[int, set[int]]) -> Cores:
    """Two cores that are not two threads of one physical core, if the machine has such a pair."""
    if len(available) < 2:
        return Cores(None, None)
    first = available[0]
    apart = [core for core in available[1:] if core not in siblings.get(first, set())]
    return Cores(first, (apart or available[1:])[0])


def cores_here() -> Cores:
    available = sorted(os.sched_getaffinity(0))
    return choose_cores(available, {core: _siblings(core) for core in available})


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Children started inside inherit this core, from their first instruction on."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def describe() -> dict[str, str]:
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "python": platform.python_version(),
        "load_before": load_average(),
    }


def load_average() -> str:
    return f"{os.getloadavg()[0]:.2f}"


def slug(machine: dict[str, str]) -> str:
    """A machine's short name for file names, such as `x86_64-2core`: host names say nothing to a stranger."""
    return f"{machine['arch']}-{machine['cores']}core"


def busy_share(seconds: float = 2.0) -> float:
    """How much of the machine others use, from 0 to 1; unlike the load average it forgets what ran before."""
    before = _cpu_times()
    time.sleep(seconds)
    idle, total = (after - past for after, past in zip(_cpu_times(), before, strict=True))
    return 1 - idle / max(total, 1)


def _cpu_times() -> tuple[int, int]:
    """Ticks in which no core had work, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _cpu_model() -> str:
    """x86 kernels name the model; arm64 ones only give the part number."""
    fields = dict(_cpuinfo_lines())
    return fields.get("model name") or f"{platform.machine()} part {fields.get('CPU part', 'unknown')}"


def _cpuinfo_lines() -> Iterator[tuple[str, str]]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


def _siblings(core: int) -> set[int]:
    try:
        text = (CPU_TOPOLOGY / f"cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return {core}
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found
