"""Start of a process that outlives the one that starts it."""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO


def start_detached(
    command: Sequence[str],
    log: Path | None,
    ended: Callable[[int], None] | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Start a process in a session of its own and return its pid. Output is appended to `log`; None: inherited.

    A thread waits for its exit, so that it does not stay a zombie, independent of event loops. `ended` is called on
    that thread with the exit status.
    """
    output = None if log is None else _open_log(log)
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=env
        )
    finally:
        if output is not None:
            output.close()

    def wait() -> None:
        status = process.wait()
        if ended is not None:
            ended(status)

    threading.Thread(target=wait, daemon=True, name=f"waits for {process.pid}").start()
    return process.pid


def _open_log(log: Path) -> BinaryIO:
    """Open the log file, or /dev/null: a full disk must not prevent the start."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(log, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))
    except OSError:
        return open(os.devnull, "ab")
