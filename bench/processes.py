"""A server under test as a process: started on its core, timed until its model is ready, weighed, and ended."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import BenchError
from bench.machine import Cores, on_core

START_LIMIT_S = 60.0
POLL_S = 0.002
STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a server: what is run, where, and with which variables besides the environment's own."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A server whose models are all ready. `ready_s` counts from exec to the last model's ready answer."""

    pid: int
    port: int
    grpc_port: int
    ready_s: float


def free_ports(count: int) -> list[int]:
    """Ports the system picks, all held until the last is known so that no two are the same."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running(
    command: Command, ports: Sequence[int], models: Sequence[str], cores: Cores, log: Path
) -> Iterator[Running]:
    """Starts the server in a session of its own and ends the whole session on the way out. HTTP's port is first.

    A server that does not speak V2 is ready when a path in place of a model's name answers.
    """
    with log.open("wb") as output, on_core(cores.server):
        started = time.perf_counter()
        process = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env={**_environment(), **command.env},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with on_core(cores.load):
            for model in models:
                _wait_ready(process, ports[0], model, started + START_LIMIT_S, log)
        yield Running(process.pid, ports[0], ports[1], time.perf_counter() - started)
    finally:
        _stop(process)


def memory_mb(pid: int) -> float:
    """Proportional set size of the process and all its descendants, which counts a shared page once."""
    total_kb = sum(pss_kb(each) for each in _tree(pid))
    return total_kb / 1024


def alone_mb(pid: int) -> float:
    """What memory_mb would be on a machine without other processes, which take a part of a library's PSS.

    What is shared within the tree counts once, in the process that has most of it.
    """
    found = [_rollup_kb(each) for each in _tree(pid)]
    private = sum(kb for rollup in found for name, kb in rollup.items() if name.startswith("Private_"))
    shared = [sum(kb for name, kb in rollup.items() if name.startswith("Shared_")) for rollup in found]
    return (private + max(shared, default=0)) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time of the process and all its descendants: shows whether a server under load had its core for itself."""
    return sum(cpu_ticks(each) for each in _tree(pid)) / os.sysconf("SC_CLK_TCK")


def settled_memory_mb(
    pid: int, patience_s: float = 5.0, step_s: float = 0.25, weigh: Callable[[int], float] = memory_mb
) -> float:
    """Memory once two readings in a row agree within 1 %: threads and caches may still be growing just after ready."""
    deadline = time.monotonic() + patience_s
    last = weigh(pid)
    while time.monotonic() < deadline:
        time.sleep(step_s)
        current = weigh(pid)
        if abs(current - last) <= 0.01 * last:
            return current
        last = current
    return last


def _environment() -> dict[str, str]:
    """Return our own, but let servers cache what Python compiles, or each start would compile every module again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _wait_ready(process: subprocess.Popen[bytes], port: int, model: str, deadline: float, log: Path) -> None:
    while not _is_ready(port, model):
        if process.poll() is not None:
            raise BenchError(f"it ended with status {process.returncode} before {model} was ready: {_tail(log)}")
        if time.perf_counter() > deadline:
            raise BenchError(f"{model} was not ready after {START_LIMIT_S:.0f} s: {_tail(log)}")
        time.sleep(POLL_S)


def _is_ready(port: int, model: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", model if model.startswith("/") else f"/v2/models/{model}/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tree(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The second field is the command in brackets and may hold spaces, so read from the last bracket on.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found.extend(parents.get(each, []))
    return found


def pss_kb(pid: int) -> int:
    return _rollup_kb(pid).get("Pss", 0)


def _rollup_kb(pid: int) -> dict[str, int]:
    """Empty for a process that has ended. The first line is the range of addresses."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:]) or "its log is empty"
