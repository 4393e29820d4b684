"""The bed's own daemons: started once, known by pid and start time, ended one by one.

A pid alone may belong to somebody else by now, so a second file beside it holds when the process began.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.bed.places import BedError, Places
from tests.eventually import eventually

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLL_SECONDS: Final = 0.2
PATIENCE_SECONDS: Final = 10.0  # between SIGTERM and SIGKILL
KILLED_SECONDS: Final = 60.0  # until then it may have its ports, which a successor needs
# Those that this very process started: it must bury them if they end before it does.
_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []


def start(places: Places, name: str, command: Sequence[str | Path]) -> None:
    """Runs a daemon, unless it runs; with a clean environment, so that no proxy's settings reach it."""
    if alive(places, name):
        return
    with open(places.log / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command], env={"PATH": f"{places.bin}:{PATH}", "HOME": str(places.state)},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=places.run,
        )  # fmt: skip
    _CHILDREN.append(process)
    (places.run / f"{name}.pid").write_text(str(process.pid))
    (places.run / f"{name}.began").write_text(began(process.pid))


def alive(places: Places, name: str) -> bool:
    return pid_of(places, name) is not None


def stop(places: Places, *names: str) -> None:
    """Asks all of them to end, then waits for each; one that does not is killed."""
    running = {name: pid for name in names if (pid := pid_of(places, name)) is not None}
    for pid in running.values():
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_SECONDS
    for name, pid in running.items():
        while pid_of(places, name) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        if pid_of(places, name) is not None:
            os.kill(pid, signal.SIGKILL)
            until(f"{name} is gone", KILLED_SECONDS, lambda name=name: pid_of(places, name) is None)
    for name in names:
        (places.run / f"{name}.pid").unlink(missing_ok=True)
        (places.run / f"{name}.began").unlink(missing_ok=True)
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]


def until(what: str, seconds: float, holds: Callable[[], bool], log: Path | None = None) -> None:
    def message() -> str:
        return f"{what}; the last lines of {log} are:\n{last_lines(log)}\n" if log else what

    eventually(holds, message, seconds, pause_s=POLL_SECONDS, error=BedError)


def last_lines(log: Path, count: int = 5) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.exists() else "(no log)"


def began(pid: int) -> str:
    """When the process was started, in ticks since boot; empty when it is gone or only waits to be buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def pid_of(places: Places, name: str) -> int | None:
    """Of the process that `start` noted; None when it is gone."""
    try:
        pid = int((places.run / f"{name}.pid").read_text())
        then = (places.run / f"{name}.began").read_text()
    except (OSError, ValueError):
        return None
    return pid if then and began(pid) == then else None
