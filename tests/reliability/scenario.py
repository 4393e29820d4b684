"""One row of the fault table while it runs: a platform of its own, loads on it, and expectations that are noted.

The platform is started, changed and ended by `platformctl`, as its users do it. Rows are async: the load goes on while
faults are injected, and verbs run in threads.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.embedded import ROOT, Platform, commands_of, inference_service, processes_of
from tests.eventually import eventually_async
from tests.ports import free_range
from tests.reliability.load import Counts, Load

# FOLDER and REVISION are replaced, and FAULT by statements. Zeros, as a warm-up sends them, are answered at once.
MODEL = """
import os, time
import numpy as np
INPUTS = {"x": ("FP64", [2])}
OUTPUTS = {"y": ("FP64", [3])}
count = 0

def predict(x):
    global count
    number = int(x[0])
    if number:
        count += 1
        with open("FOLDER/executed", "ab", buffering=0) as file:
            file.write(b"%d\\n" % number)
        FAULT
    time.sleep(float(x[1]))
    return np.array([2 * number + 1, REVISION, os.getpid()], float)
"""
# What a process runs, by a word of its command line; a replica is whatever else runs the predictor.
KINDS = {
    "pilotlight-shim": "shim",
    "log_writer.py": "log writer",
    "parent_process.py": "parent",
    "pilotlight.control_plane.daemon": "control",
    "pilotlight.gateway": "gateway",
    "pilotlight_predictor.bootstrap.forkserver": "pilot light",
    "pilotlight_predictor": "replica",
}
Completed = subprocess.CompletedProcess[str]
BACK_S = 3.0  # what the platform promises after kills of its own processes


class Scenario(Platform):
    """A platform in `folder`; `short` rows repeat less."""

    def __init__(self, folder: Path, short: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / "home", {"PILOTLIGHT_PILOT_LIGHT": "on"})
        first = free_range(24)
        self.env |= {
            "PILOTLIGHT_GATEWAY_PORT": str(first),
            "PILOTLIGHT_API_PORT": str(first + 1),
            "PILOTLIGHT_SERVICE_PORTS": str(first + 2),
        }
        self.folder, self.short = folder, short
        self.gateway_port = first
        self.counts = Counts()
        self.back_s = 0.0
        self.missed: list[str] = []
        self.notes: list[str] = []

    def times(self, full: int, short: int) -> int:
        return short if self.short else full

    # Services

    def model(self, name: str = "model", revision: int = 1, fault: str = "pass") -> str:
        """Write a model that is correct but for `fault`; return its path."""
        source = MODEL.replace("FAULT", fault).replace("REVISION", str(revision)).replace("FOLDER", str(self.folder))
        path = self.folder / name
        path.mkdir(exist_ok=True)
        (path / "model.py").write_text(source)
        return str(path)

    def document(self, uri: str, name: str = "slow", *, least: int = 1, most: int = 2, **parts: str) -> str:
        """Write a document of a Python model; return its path."""
        file = self.folder / f"{name}-{Path(uri).name}.yaml"
        file.write_text(inference_service(name, "python", uri, least=least, most=most, **parts))
        return str(file)

    async def serve(self, *, least: int = 2, most: int = 2, name: str = "slow", uri: str = "", **parts: str) -> None:
        """Deploy a service and wait until it is ready."""
        file = self.document(uri or self.model(), name, least=least, most=most, **parts)
        done = await self.verb("deploy", "-f", file, "--timeout", "60")
        if done.returncode:
            raise AssertionError(f"the service did not start: {done.stderr.strip()[-400:]}")
        if least:
            await self.until(lambda: self.ready(name) >= least, f"{least} replicas")

    def ready(self, name: str = "slow") -> int:
        with suppress(Exception):
            return sum(row.ready for row in self.status(name).revisions)
        return -1

    async def verb(
        self, *words: str, ok: bool | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run platformctl in a thread; `ok` says whether it is expected to succeed, None that either will do."""
        done = await asyncio.to_thread(self.verb_now, *words, timeout_s=timeout_s)
        if ok is not None:
            said = (done.stdout + done.stderr).strip()[-300:]
            self.expect((done.returncode == 0) == ok, f"platformctl {' '.join(words)}: exit {done.returncode}: {said}")
        return done

    def verb_now(self, *words: str, timeout_s: float = 120) -> Completed:
        command = [sys.executable, "-m", "platformctl", *words]
        try:
            return subprocess.run(command, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"no end within {timeout_s:g} s")

    # Processes

    def kinds(self) -> dict[int, str]:
        """The kind of each process of this platform."""
        kinds: dict[int, str] = {}
        for pid, command in commands_of(self.home):
            words = [Path(word).name for word in command.split("\0")]
            kinds[pid] = next((kind for word, kind in KINDS.items() if word in words), "other")
            if "platformctl" in words:
                del kinds[pid]
        return kinds

    def pids(self, kind: str) -> list[int]:
        return sorted(pid for pid, each in self.kinds().items() if each == kind)

    def kill(self, kinds: Iterable[str], number: int = signal.SIGKILL, *loads: Load) -> set[int]:
        """Signal one process of each kind at once; return their pids."""
        running = self.kinds()
        victims = {next((pid for pid, each in running.items() if each == kind), 0) for kind in kinds} - {0}
        for load in loads:
            load.fault()
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return victims

    async def until(self, holds: Callable[[], object], what: str, seconds: float = 60.0) -> float:
        """Wait, and return for how long; what does not come is a missed expectation."""
        began, seconds = time.monotonic(), seconds * patience()
        try:
            await eventually_async(lambda: bool(holds()), what, seconds, pause_s=0.1)
        except AssertionError:
            self.expect(False, f"{what}: not within {seconds:g} s")
        return time.monotonic() - began

    async def back(self, counts: Mapping[str, int], gone: set[int], seconds: float) -> None:
        """Wait until there are as many processes of each kind as before, without the killed ones."""

        def complete() -> bool:
            living = Counter(kind for pid, kind in self.kinds().items() if pid not in gone)
            return all(living[kind] >= count for kind, count in counts.items())

        await self.until(complete, f"{', '.join(counts)} again", seconds)

    def accepts(self) -> bool:
        """Whether the gateway's port accepts connections."""
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.gateway_port), 1.0).close()
            return True
        return False

    # Expectations

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.missed.append(otherwise)

    def judge(self, load: Load, *, refused: int = 0, reset: int = 0, lost: int = 0, back_s: float = 60.0) -> None:
        """Add a load that has ended to the row; at most so many of its requests may have failed in each way."""
        self.counts += load.counts
        self.back_s = max(self.back_s, load.longest_gap_s)
        counts, reasons = load.counts, "; ".join(load.reasons())
        bounds = {"wrong": 0, "refused": refused, "reset": reset, "lost": lost}
        for name, bound in bounds.items():
            count = getattr(counts, name)
            self.expect(count <= bound, f"{count} {name}, expected at most {bound}: {reasons}")
        self.expect(counts.right > 0, f"no right answer at all: {reasons}")
        gap, back_s = load.longest_gap_s, back_s * patience()
        self.expect(gap <= back_s, f"no right answer for {gap:.1f} s, expected at most {back_s:.1f} s")

    def executed_twice(self) -> list[int]:
        path = self.folder / "executed"
        numbers = Counter(path.read_text().split()) if path.exists() else Counter()
        return [int(number) for number, count in numbers.items() if count > 1]

    # Start and end

    def start(self) -> None:
        done = self.verb_now("up")
        self.expect(done.returncode == 0, f"platformctl up: {done.stderr.strip()[-300:]}")

    def finish(self) -> None:
        """End the platform, and expect that nothing is left of it."""
        if self.home.root.exists() or self.kinds():
            done = self.verb_now("down", "--timeout", "5", timeout_s=90)
            self.expect(done.returncode == 0, f"platformctl down: exit {done.returncode}: {done.stderr.strip()[-300:]}")
        left = processes_of(self.home)
        words = {pid: text.replace("\0", " ")[:120] for pid, text in commands_of(self.home) if pid in left}
        self.expect(not words, f"left behind after down: {words}")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if twice := self.executed_twice():
            self.missed.append(f"executed twice: {twice[:5]}")


def patience() -> float:
    """Factor of all bounds in seconds: above 1 while the machine has more work than cores."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def descriptors(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0
