"""Starting a process that outlives its parent: the gateway by the control process, and the other way round."""

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO


def start_detached(command: Sequence[str], log: Path | None, ended: Callable[[int], None] | None = None) -> int:
    """In a session of its own; its pid. Output is added to `log`; without one it goes where ours goes.

    A thread waits for its end: no child remains half dead, and an event loop that closes takes none with it. `ended`
    is called on that thread with the exit status.
    """
    output = None if log is None else _opened(log)
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
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


def _opened(log: Path) -> BinaryIO:
    """A disk that takes no log must not keep the process from starting."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return log.open("ab")
    except OSError:
        return open(os.devnull, "ab")
