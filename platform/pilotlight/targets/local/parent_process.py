"""Parent process of a home: starts the control process again whenever it has ended, and does nothing else.

The control process holds a lock while it runs, so its end is noticed by waiting for the lock. That needs no pid: the
first control process is started by `platformctl up` and adopted. It starts a parent when there is none.
A parent ends with `platformctl down`, which removes the restart command, or when the home was removed.

Started as a file, not a module, and with the standard library only: a few megabytes, no threads, no timer while a
control process runs.
"""

import fcntl
import os
import sys
import time

DELAYS_S = (0.2, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # by failures in a row
KILLED_SETTLED_S = 2.0  # killed after this long: not by its own fault
MAX_KILLED = 3  # failures that kills add up to: whoever kills it again and again must not delay it for long
SETTLED_S = 30.0  # exited by itself after this long: it does not fail at every start
LOCK_TRIES = 10
POLL_S = 0.1


def failures_after(failures: int, status: int | None, lived_s: float) -> int:
    """Return the failures in a row after an exit with `status`: negative by a signal, None of one that was adopted.

    One that was adopted had served, so its end is no failed start.
    """
    if status is None:
        return 0
    if lived_s >= (KILLED_SETTLED_S if status < 0 else SETTLED_S):
        return 0
    return min(failures + 1, MAX_KILLED) if status < 0 else failures + 1


def delay_s(failures: int) -> float:
    """Return the seconds before the next start."""
    return DELAYS_S[min(failures, len(DELAYS_S) - 1)]


def ending(status: int | None) -> str:
    if status is None:
        return "has ended"
    return f"was terminated by signal {-status}" if status < 0 else f"exited with code {status}"


class Parent:
    """Restarts the control process of the home at `root`; `lock` is the open file that control processes lock."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock_path = os.path.join(root, "daemon.lock")
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def run(self) -> int:
        failures, lived_s = 0, 0.0
        status: int | None = None
        while True:
            if self._held():
                status = None
                fcntl.flock(self._lock, fcntl.LOCK_SH)
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            failures = failures_after(failures, status, lived_s)
            if not self._wait(delay_s(failures), status):
                return 0
            if not self._held() and (command := self._command()):
                began = time.monotonic()
                status = self._start(command)
                lived_s = time.monotonic() - began

    def _wait(self, seconds: float, status: int | None) -> bool:
        """Wait before a start, or until another control process runs; return whether one should still run."""
        if not self._command():
            return False
        self._log("WARNING", f"the control process {ending(status)}; restarting it in {seconds:g} s")
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._command() and not self._held():
            time.sleep(min(POLL_S, left))
        return bool(self._command())

    def _command(self) -> list[str]:
        """Return the restart command; empty: the platform was stopped, or the home removed or replaced."""
        try:
            if not os.path.samestat(os.stat(self._lock_path), os.fstat(self._lock)):
                return []
            with open(os.path.join(self._root, "daemon.command")) as file:
                return file.read().split("\0")
        except OSError:
            return []

    def _held(self) -> bool:
        """Whether a control process runs."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False

    def _start(self, command: list[str]) -> int:
        """Start the control process, with its output in its log; return its exit status once it has ended."""
        log = os.path.join(self._root, "logs", "daemon.log")
        if not os.access(log, os.W_OK):
            log = os.devnull
        output = [(os.POSIX_SPAWN_OPEN, each, log, os.O_WRONLY | os.O_APPEND, 0) for each in (1, 2)]
        devnull = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        try:
            pid = os.posix_spawn(command[0], command, os.environ, file_actions=[devnull, *output])
        except OSError as error:
            self._log("ERROR", f"the control process cannot be started: {command[0]}: {error.strerror}")
            return 127
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _log(self, level: str, message: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')},000 {level} pilotlight.parent: {message}\n"
        try:
            log = os.open(os.path.join(self._root, "logs", "daemon.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(log, line.encode())
            os.close(log)
        except OSError:
            pass  # a full disk must not prevent the restart


def locked(path: str) -> bool:
    """Take the lock of the home's only parent. A control process that looks for a parent has it for a moment."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def main(root: str) -> int:
    return Parent(root).run() if locked(os.path.join(root, "run", "parent.lock")) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[sys.argv.index("--home") + 1]))
