"""The parent of a replica: a few lines of shell that outlive the control process and note how the replica ended.

It answers the number of the process that it started on its output, waits for that process, and writes its exit status
as one line: code, or 128 and the signal. The end of the line is what makes the file complete. A pilot light writes
the same file for those that it forks.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

SETTLE_S: Final = 5.0  # from the end of a process to the note of it, on a machine that has other things to do
OWN_S: Final = 60.0  # the same of a shim that is our child: it ends for certain, and is then told at once
# A caught signal interrupts `wait`; only a process that is gone has really ended. Caught before the fork, it would be
# lost on a replica that has not come to its own program yet.
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
# Python ignores these two, and a process inherits what is ignored.
_RESTORED: Final = [number for name in ("SIGPIPE", "SIGXFSZ") if (number := getattr(signal, name, None))]


class Shim(NamedTuple):
    """`output` is the reading end of its output: one line with the number of the replica's process."""

    pid: int
    output: int


class Exit(NamedTuple):
    """Both None: nobody knows, since whoever waited for it ended too."""

    code: int | None = None
    signal: int | None = None


def start(command: Sequence[str], env: Mapping[str, str], cwd: Path, log: int, exit_file: Path) -> Shim:
    """In a session of its own: what ends a terminal's jobs, or us, does not reach it."""
    exit_file.unlink(missing_ok=True)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _SCRIPT, "pilotlight-shim", str(exit_file), str(cwd), *command],
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                *closing_inheritable(),
            ],
            setsid=True,
            setsigdef=_RESTORED,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Shim(pid, reading)


def closing_inheritable() -> list[tuple[int, int]]:
    """What a process that is spawned must close. Descriptors that came over a socket are inherited unless somebody
    thought of it, and a listener that a replica keeps would hold its port for ever."""
    found = []
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append((os.POSIX_SPAWN_CLOSE, int(name)))
    return found


def read_pid(output: int) -> int:
    """0: it has not told it yet, or ended before it could start anything. Closes the descriptor."""
    try:
        text = os.read(output, 64).strip()
    except BlockingIOError:
        text = b""
    finally:
        os.close(output)
    return int(text) if text.isdigit() else 0


async def settle(shim_pid: int, exit_file: Path) -> Exit:
    """How the replica that has just ended did so, once its parent has noted it. `shim_pid` 0: the parent is not ours.

    The shim exits as its replica did, so a disk too full for the note loses nothing while we live. What the replica
    itself left running in its session ends with it.
    """
    end, pause = monotonic() + (OWN_S if shim_pid and hasattr(os, "waitid") else SETTLE_S), 0.001
    while monotonic() < end:
        noted = read_exit(exit_file)
        if shim_pid and (noted or hasattr(os, "waitid")) and (code := _reap(shim_pid)) is not None:
            return noted or (from_shell(code) if code >= 0 else Exit())
        if noted and not shim_pid:
            return noted
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
    return read_exit(exit_file) or Exit()


def _reap(shim_pid: int) -> int | None:
    """None: it has not ended. Its number stays taken until it is waited for, so the group is certainly its own."""
    with suppress(ChildProcessError):
        if not _has_ended(shim_pid):
            return None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(shim_pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(shim_pid, 0)[1])
    return -1


def _has_ended(shim_pid: int) -> bool:
    """Python has no waitid on macOS before 3.13; there the shim is taken to end right behind its replica."""
    if not hasattr(os, "waitid"):
        return True
    return os.waitid(os.P_PID, shim_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def read_exit(exit_file: Path) -> Exit | None:
    """None: not written yet, or not to its end."""
    with suppress(OSError, ValueError):
        text = exit_file.read_text()
        if text.endswith("\n"):
            return from_shell(int(text))
    return None


def from_shell(status: int) -> Exit:
    """As a shell tells it. A process that itself exits with 139 is taken for one that signal 11 ended."""
    if status > 128 and status - 128 in set(signal.Signals):
        return Exit(status, status - 128)
    return Exit(status, None)
