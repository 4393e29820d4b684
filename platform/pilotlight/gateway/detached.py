"""Starting a process that outlives its parent: the gateway by the control process, and the other way round."""

import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path


def start_detached(command: Sequence[str], log: Path | None, ended: Callable[[int], None] | None = None) -> int:
    """In a session of its own; its pid. Output is added to `log`; without one it goes where ours goes.

    A thread waits for its end: no child remains half dead, and an event loop that closes takes none with it. `ended`
    is called on that thread with the exit status.
    """
    output = log.open("ab") if log is not None else None
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
