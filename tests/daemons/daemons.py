"""Daemons that a test starts for itself: each a child, with files of its own in one folder, ended by its process id."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 120.0
END_S = 40.0
PAUSE_S = 0.1


class DidNotStart(Exception):
    """With the last lines of its log."""


@contextmanager
def daemon(
    words: Sequence[str], log: Path, environ: Mapping[str, str], is_up: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """Runs until the block ends; enters it once `is_up`. From then on SIGTERM ends a run as SIGINT does."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with open(log, "ab") as file:
        process = subprocess.Popen(
            words, env=dict(environ), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        wait(is_up, process, log)
        yield process
    finally:
        end(process)


def wait(is_up: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not is_up():
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(errors="replace").splitlines()[-5:]
            raise DidNotStart(f"{process.args[0]} (exit code {process.returncode}): {' / '.join(last)}")
        time.sleep(PAUSE_S)


def end(process: subprocess.Popen[bytes]) -> None:
    """What it started and left behind is in its session, and ends with it."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
