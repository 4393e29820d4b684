"""A platform of its own in a folder of its own, driven by `platformctl` as a person would."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load import BenchError
from bench.processes import cpu_ticks, free_ports, pss_kb

SERVICE_PORTS = 21000  # below the ports that the system hands out
VERB_LIMIT_S = 300.0
SETTLE_LIMIT_S = 30.0
FOREIGN = ("PILOTLIGHT_", "INFERENCE_", "PYTHONDONTWRITEBYTECODE")  # would make figures of another set-up


@dataclass(frozen=True, slots=True)
class Platform:
    """`gateway` is its port. Processes are found by the home folder that they name or log to."""

    home: Path
    gateway: int
    env: dict[str, str]

    def run(self, *arguments: str) -> float:
        """Seconds that the verb took, interpreter and all."""
        started = time.perf_counter()
        self.tell(*arguments)
        return time.perf_counter() - started

    def tell(self, *arguments: str) -> str:
        """What the verb printed."""
        done = subprocess.run(
            [sys.executable, "-m", "platformctl", *arguments],
            env=self.env, capture_output=True, text=True, check=False, timeout=VERB_LIMIT_S,
        )  # fmt: skip
        if done.returncode:
            raise BenchError(f"platformctl {arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def asleep(self) -> int:
        """How many services are at zero."""
        return sum(service["phase"] == "Standby" for service in json.loads(self.tell("list", "-o", "json"))["services"])

    def deploy(self, document: Path) -> float:
        return self.run("deploy", "-f", str(document))

    def sleep(self) -> None:
        """Scale all services to zero: after a restart no replica runs before its first request."""
        self.run("down")
        self.run("up")

    def control_pids(self) -> list[int]:
        """The control process and the gateway."""
        found = [pid for pid, words in commands() if str(self.home) in " ".join(words) and _is_control(words)]
        if len(found) != 2:
            raise BenchError(f"{len(found)} processes of {self.home.name} were found, not control process and gateway")
        return found

    def replica(self, service: str) -> tuple[int, int]:
        """Process and port of the newest replica, as its log tells."""
        logs = sorted((self.home / "logs" / "default" / service).glob("*.log"), key=lambda log: log.stat().st_mtime)
        lines = [json.loads(line) for line in logs[-1].read_text().splitlines() if line.startswith("{")]
        port = next(int(line["http_port"]) for line in lines if line["event"] == "listening")
        output = str(self.home / "run" / "output" / f"default@{service}@{logs[-1].stem}")
        writers = [pid for pid, words in commands() if _stderr_of(pid) == output and words[0] != "sh"]
        if len(writers) != 1:
            raise BenchError(f"{len(writers)} processes write to the log of {service}, not the replica alone")
        return writers[0], port

    def pilot_light(self) -> int:
        """The pilot light's process, once it burns; what it has forked looks alike but has another session."""
        socket = str(self.home / "run" / "pilot-onnxruntime.sock")
        wait_for(lambda: os.path.exists(socket), "the pilot light")
        return next(pid for pid, words in commands() if socket in words and _stderr_of(pid).endswith("onnxruntime.log"))


@contextlib.contextmanager
def platform(folder: Path, *, pilot_light: bool = True) -> Iterator[Platform]:
    """Started, and on the way out ended and forgotten."""
    shutil.rmtree(folder, ignore_errors=True)
    gateway, api = free_ports(2)
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    env |= {
        "PILOTLIGHT_HOME": str(folder),
        "PILOTLIGHT_GATEWAY_PORT": str(gateway),
        "PILOTLIGHT_API_PORT": str(api),
        "PILOTLIGHT_SERVICE_PORTS": str(SERVICE_PORTS),
        "PILOTLIGHT_PILOT_LIGHT": "on" if pilot_light else "off",
    }
    made = Platform(folder, gateway, env)
    try:
        made.run("up")
        yield made
    finally:
        made.run("down")
        shutil.rmtree(folder, ignore_errors=True)


def memory_mb(pids: Sequence[int]) -> float:
    """Proportional set size of these processes alone."""
    return sum(pss_kb(pid) for pid in pids) / 1024


def private_mb(pid: int) -> float:
    """Return the memory that the end of the process would free: its private pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def cpu_percent(pids: Sequence[int], seconds: float) -> float:
    """Of one core, over the time that this waits."""
    before = sum(cpu_ticks(pid) for pid in pids)
    time.sleep(seconds)
    spent = (sum(cpu_ticks(pid) for pid in pids) - before) / os.sysconf("SC_CLK_TCK")
    return 100 * spent / seconds


def pin(pid: int, core: int | None) -> None:
    """The process with all threads that it has already."""
    if core is not None:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def wait_for(holds: Callable[[], Any], what: str, limit_s: float = SETTLE_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise BenchError(f"waited {limit_s:.0f} s in vain for {what}")
        time.sleep(0.02)


def all_pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def commands() -> Iterator[tuple[int, list[str]]]:
    for pid in all_pids():
        with contextlib.suppress(OSError):
            yield pid, Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")


def _is_control(words: Sequence[str]) -> bool:
    return "pilotlight.control_plane.daemon" in words or "pilotlight.gateway" in words


def _stderr_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/2")
    return ""
