"""Shim: the parent process of a replica, a shell script that outlives the control process and records the exit status.

It writes the replica's pid to its output, waits for it, and writes the exit status to a file as one line: the code, or
128 plus the signal. The file is complete with its line break. A pilot light writes the same file for its forks.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.process_identity import Identity
from pilotlight.targets.local.supervisor.process_inspection import SHIM

EXIT_FILE_TIMEOUT_S: Final = 5.0  # from a process's exit to its exit file, on a busy machine
CHILD_EXIT_TIMEOUT_S: Final = 60.0  # the same for a shim that is a child: it certainly ends, and is then reaped at once
# A trapped signal interrupts `wait`, so the loop ends only when the process is gone. The trap is set after the fork: a
# child that has not reached exec yet would inherit it and lose the signal.
_SCRIPT: Final = """
exit_file=$1; cd "$2"; shift 2
"$@" >&2 &
pid=$!
trap : HUP INT TERM
echo $pid
exec >&2
while :; do wait $pid; code=$?; kill -0 $pid 2>/dev/null || break; done
echo $code >"$exit_file"
exit $code
"""
# Python ignores these two, and ignored signals are inherited.
_DEFAULT_SIGNALS: Final = [number for name in ("SIGPIPE", "SIGXFSZ") if (number := getattr(signal, name, None))]


class Shim(NamedTuple):
    """Started shim. `output` is the read end of its pipe: one line with the replica's pid."""

    pid: int
    output: int


class Exit(NamedTuple):
    """Exit status of a process; both None: unknown, since its parent ended too."""

    code: int | None = None
    signal: int | None = None


def exit_file(home: Home, replica: str) -> Path:
    return home.run / f"{replica}.exit"


def start(command: Sequence[str], env: Mapping[str, str], cwd: Path, log: int, exit_file: Path) -> Shim:
    """Start a command under a shim, in a session of its own: signals to this process group do not reach it."""
    exit_file.unlink(missing_ok=True)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _SCRIPT, SHIM, str(exit_file), str(cwd), *command],
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                *closing_inheritable(),
            ],
            setsid=True,
            setsigdef=_DEFAULT_SIGNALS,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Shim(pid, reading)


def closing_inheritable() -> list[tuple[int, int]]:
    """Return spawn actions that close inheritable descriptors.

    Descriptors received over a socket are inheritable; a listener inherited by a replica would hold its port.
    """
    actions = []
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                actions.append((os.POSIX_SPAWN_CLOSE, int(name)))
    return actions


def read_pid(output: int) -> int:
    """Read the replica's pid and close the descriptor; 0: not written yet, or nothing was started."""
    try:
        text = os.read(output, 64).strip()
    except BlockingIOError:
        text = b""
    finally:
        os.close(output)
    return int(text) if text.isdigit() else 0


async def wait_exit(shim_pid: int, exit_file: Path, recorder: Identity | None) -> Exit:
    """Return the exit status of a replica that has just ended; `shim_pid` 0: its parent is not a child of this process.

    The shim exits with the replica's status, so a full disk that prevents the exit file loses nothing. Processes that
    the replica left in its session are killed. `recorder` is the process that writes the exit file, where it is known:
    if that has ended too, the file is not waited for.
    """
    end = monotonic() + (CHILD_EXIT_TIMEOUT_S if shim_pid and hasattr(os, "waitid") else EXIT_FILE_TIMEOUT_S)
    pause = 0.001
    while monotonic() < end:
        unrecorded = recorder is not None and not recorder.alive  # before the read: its last act may be the file
        recorded = read_exit(exit_file)
        if shim_pid and (recorded or hasattr(os, "waitid")) and (code := _reap(shim_pid)) is not None:
            return recorded or (from_shell(code) if code >= 0 else Exit())
        if not shim_pid and (recorded or unrecorded):
            return recorded or Exit()
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
    return read_exit(exit_file) or Exit()


def _reap(shim_pid: int) -> int | None:
    """Kill the shim's process group and return its exit code; None: it has not ended.

    Until it is reaped its pid cannot be reused, so the group is certainly its own.
    """
    with suppress(ChildProcessError):
        # Python has no waitid on macOS before 3.13; there the shim is assumed to end right after its replica.
        if hasattr(os, "waitid") and os.waitid(os.P_PID, shim_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(shim_pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(shim_pid, 0)[1])
    return -1


def read_exit(exit_file: Path) -> Exit | None:
    """Read an exit file; None: not written, or incomplete."""
    with suppress(OSError, ValueError):
        text = exit_file.read_text()
        if text.endswith("\n"):
            return from_shell(int(text))
    return None


def from_shell(status: int) -> Exit:
    """Convert a shell's exit status. A process that itself exits with 139 is taken for one ended by signal 11."""
    if status > 128 and status - 128 in set(signal.Signals):
        return Exit(status, status - 128)
    return Exit(status, None)
