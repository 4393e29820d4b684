"""Resource usage, roles and exit of processes, from /proc, or from `ps` where there is none (macOS; slow)."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Final

from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.process_identity import PROC, Identity, identify, query_ps, stat_fields
from pilotlight.targets.local.supervisor.replica_record import Usage
from pilotlight.wire import unix_socket
from pilotlight.wire.machine import boot_id

ENV_REPLICA: Final = "PILOTLIGHT_REPLICA"
DELETED: Final = " (deleted)"  # appended by the kernel to the link of a removed file
POLL_S: Final = 0.1  # where the kernel has no pidfd
# /proc/PID/environ is empty during exec, so a process that is just starting is found only by a later scan.
SCAN_DELAYS_S: Final = (0.1, 0.5, 2.0, 10.0)
_SIZES: Final = ("RssAnon", "RssFile", "RssShmem", "VmLck")  # of /proc/PID/status
CONTROL: Final = "control process"
GATEWAY: Final = "gateway"
LOG_WRITER: Final = "log writer"
PARENT: Final = "parent process"
PILOT_LIGHT: Final = "pilot light"
SHIM: Final = "pilotlight-shim"  # in the command line of a shim
FORKSERVER: Final = "pilotlight_predictor.bootstrap.forkserver"
_SCRIPTS: Final = {"log_writer.py": LOG_WRITER, "parent_process.py": PARENT}
_ROLES: Final = {"pilotlight.control_plane.daemon": CONTROL, "pilotlight.gateway": GATEWAY}


def exit_recorder(pid: int) -> Identity | None:
    """Return the parent that records the exit status of a process: a shim or a pilot light; None: unknown, no /proc.

    For a process whose recorder has ended, the result is not alive: its parent is the init process or a subreaper.
    """
    if not (fields := stat_fields(pid)):
        return None
    parent = int(fields[1])
    recorder = identify(parent) if {SHIM, FORKSERVER} & set(_command_line(parent)) else None
    return recorder or Identity(parent, boot_id(), 0)


def _command_line(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def age_s(identity: Identity) -> float:
    """Return the seconds since its start, by the boot clock where /proc exists."""
    if not PROC.exists():
        return max(0.0, time.time() - identity.start_ticks)
    started = identity.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


class ExitWatch:
    """Calls `ended` once, from the event loop, when the process has exited; by pidfd on Linux, else by polling."""

    def __init__(self, pid: int, ended: Callable[[], None]) -> None:
        self._pid, self._ended = pid, ended
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            self._fd = -1
            self._timer = self._loop.call_later(0, self._poll)
        else:
            self._loop.add_reader(self._fd, self._finish)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this very process: with a pidfd its pid cannot have been reused."""
        with suppress(ProcessLookupError, PermissionError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif self._timer is not None:
                os.kill(self._pid, number)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _poll(self) -> None:
        try:
            os.kill(self._pid, 0)
        except OSError:
            self._finish()
        else:
            self._timer = self._loop.call_later(POLL_S, self._poll)

    def _finish(self) -> None:
        self.close()
        self._ended()


def usage(pid: int) -> Usage:
    """Return usage of the process and its descendants; of ended ones only reaped CPU time counts."""
    if not PROC.exists():
        return ps_usage(pid)
    ticks = os.sysconf("SC_CLK_TCK")
    seconds, resident, unreclaimable = 0.0, 0, 0
    for member in process_tree(pid):
        fields = stat_fields(member)
        if fields:
            own = fields[11:15] if member == pid else fields[11:13]
            seconds += sum(map(int, own)) / ticks
            pages = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            resident, unreclaimable = resident + pages, unreclaimable + _unreclaimable(member, pages)
    return Usage(seconds, resident, unreclaimable)


def _unreclaimable(pid: int, resident: int) -> int:
    """Return the resident bytes of a process that are no pages of files, or locked (`mlock`) ones.

    All where the kernel (gVisor) has one sum.
    """
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    sizes = {name: int(line.split()[1]) * 1024 for line in lines if (name := line.partition(":")[0]) in _SIZES}
    if "RssAnon" not in sizes:
        return resident
    # At most: the kernel does not tell how much of the locked memory is pages of files.
    locked = min(sizes.get("RssFile", 0), sizes.get("VmLck", 0))
    return sizes["RssAnon"] + sizes.get("RssShmem", 0) + locked


def process_tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from process_tree(int(child))


def ps_usage(pid: int) -> Usage:
    """Return the usage of the process without its descendants."""
    resident, _, clock = query_ps(pid, "rss=,time=").partition(" ")
    if not resident.isdecimal():
        return Usage()
    days, _, rest = clock.strip().rpartition("-")  # [days-][hours:]minutes:seconds[.hundredths]
    seconds = reduce(lambda total, part: total * 60 + float(part), rest.split(":"), 0.0)
    size = int(resident) * 1024
    return Usage(seconds + 86400 * int(days or 0), size, size)


def pilot_light_pids(home: Home) -> list[int]:
    """Return the pilot lights of this home, whichever supervisor started them."""
    return [int(folder.name) for folder in _own_processes() if _role_of(folder, home) == PILOT_LIGHT]


def log_writer_pids(home: Home) -> list[int]:
    return [int(folder.name) for folder in _own_processes() if _role_of(folder, home) == LOG_WRITER]


def _own_processes() -> Iterator[Path]:
    uid, own = os.getuid(), os.getpid()
    try:
        folders = list(PROC.iterdir())
    except OSError:  # no /proc, or no descriptor left
        return
    for folder in folders:
        if folder.name.isdecimal() and int(folder.name) != own:
            with suppress(OSError):
                if folder.stat().st_uid == uid:
                    yield folder


def replica_processes(home: Home) -> Iterator[tuple[int, str]]:
    """Yield (pid, replica id) of this user's processes that belong to this home, whatever their parents.

    A process started by a shim has the ids in its environment. A fork of a pilot light shows the pilot light's
    environment instead and is identified by its pipe to the log writer or its log file.
    """
    for folder in _own_processes():
        with suppress(OSError):
            if replica := _replica_of(folder, home):
                yield int(folder.name), replica


def replica_of_process(home: Home, pid: int) -> str:
    """Return the replica of this home that a process belongs to; empty: none."""
    try:
        return _replica_of(PROC / str(pid), home)
    except OSError:
        return ""


def _replica_of(folder: Path, home: Home) -> str:
    variables = (folder / "environ").read_bytes().split(b"\0")
    if f"{ENV_HOME}={home.root}".encode() not in variables:
        return ""
    start = f"{ENV_REPLICA}=".encode()
    if named := next((value[len(start) :].decode() for value in variables if value.startswith(start)), ""):
        return named
    target = Path(os.readlink(folder / "fd/2").removesuffix(DELETED))
    if target.parent.match("run/output") and target.name.count("@") == 2:  # its pipe; the home may have been moved
        return target.name.removesuffix(".ended").rpartition("@")[2]
    ours = target.is_relative_to(home.logs) and len(target.relative_to(home.logs).parts) == 3
    return target.stem if ours and target.suffix == ".log" else ""


def home_processes(home: Home) -> dict[int, str]:
    """Return the processes of a home with their roles. Reads none of its files: they may be removed or moved."""
    return {
        **{int(folder.name): role for folder in _own_processes() if (role := _role_of(folder, home))},
        **{pid: f"replica {replica}" for pid, replica in replica_processes(home)},
    }


def _role_of(folder: Path, home: Home) -> str:
    """Return the role of a process that has the home in its command line; empty: none."""
    command = _command_line(int(folder.name))
    if f"--config.file={home.root}/prometheus/prometheus.yaml" in command:
        return "prometheus"
    scripts = [role for word in command if (role := _SCRIPTS.get(Path(word).name))]
    if scripts and str(home.root) in command:
        return scripts[0]
    module = _option(command, "-m")
    if module == FORKSERVER and Path(_option(command, "--socket")).parent == home.run:
        return PILOT_LIGHT
    if not module.startswith("pilotlight.") or _option(command, "--home") != str(home.root):
        return ""
    return _ROLES.get(module, module.rpartition(".")[2].replace("_", " "))


def _option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1] if name in command[:-1] else ""


def connections_to(port: int, host: str = "") -> int:
    """Return the established connections to a port of loopback or of a `unix:` host; 0 without /proc."""
    path = unix_socket.is_unix(host) and str(unix_socket.socket_path(host, port))
    try:
        rows = [
            line.split() for line in Path("/proc/net/unix" if path else "/proc/net/tcp").read_text().splitlines()[1:]
        ]
    except OSError:
        return 0
    if path:  # a server may have renamed it, as ours do, or bound it relative to its folder, as engines do
        paths = [row[7] for row in rows if len(row) == 8 and row[5] == "03"]
        return sum(each == path or each.startswith(f"{path}.") or path.endswith(f"/{each}") for each in paths)
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


class OrphanReaper:
    """Kills processes of a home that belong to no supervised replica; `known` are the ids of those.

    They are replicas whose supervisor died between start and record, and processes that a model has left behind.
    """

    def __init__(self, home: Home, known: Container[str]) -> None:
        self._home, self._known = home, known
        self._timers: list[asyncio.TimerHandle] = []

    def kill(self) -> None:
        """Scan now and again after each of SCAN_DELAYS_S; call once living replicas are adopted and after exits."""
        self.close()
        self._scan()
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(seconds, self._scan) for seconds in SCAN_DELAYS_S]

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _scan(self) -> None:
        for pid, replica in replica_processes(self._home):
            if replica not in self._known:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
