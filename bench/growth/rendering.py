"""Rendering against the number of services: `platformctl render` of one file, in CPU seconds and peak memory."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.embedded.services import names, write
from bench.growth.curves import Axis, Panel, Point, Setup
from bench.growth.fit import each, power
from bench.load import BenchError
from bench.subject import Subject

STEPS = (1, 10, 100, 1000, 10_000)
# The peak that wait4 tells is never below that of the process which started it, so the child tells its own.
TELLING = """
import atexit, pathlib, runpy, sys
atexit.register(lambda: sys.stderr.write(pathlib.Path("/proc/self/status").read_text()))
runpy.run_module("platformctl", run_name="__main__", alter_sys=True)
"""
LIMIT_S = 600.0  # 10,000 services take half a minute of CPU
PEAK = re.compile(r"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


def measure(setup: Setup, subject: Subject) -> Iterator[Point]:
    for count in setup.steps(STEPS):
        document = write(setup.work / "growing.yaml", names("service", count), subject.models["iris"])
        yield Point(count, rendered(document))


def rendered(document: Path, limit_s: float = LIMIT_S) -> dict[str, float]:
    """CPU time and not the clock's, so that what else runs does not count."""
    before = _children_cpu()
    command = [sys.executable, "-c", TELLING, "render", "-f", str(document)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"platformctl render of {document.name} did not end within {limit_s:g} s") from None
    peak = PEAK.search(done.stderr)
    if done.returncode or peak is None:
        raise BenchError(f"platformctl render ended with {done.returncode}: {done.stderr[-300:]}")
    return {"cpu_s": _children_cpu() - before, "peak_mb": int(peak[1]) / 1024}


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


AXIS = Axis(
    "rendering",
    "one file of services through platformctl render",
    "services in the file",
    (Panel("cpu_s", "CPU seconds", power("CPU", "s")), Panel("peak_mb", "peak memory, MB", each("peak memory", "MB"))),
    measure,
    steady=True,
)
