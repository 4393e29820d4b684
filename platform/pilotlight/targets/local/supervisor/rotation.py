"""Logs of replicas: files that they append to themselves, cut and counted by the supervisor."""

import os
from pathlib import Path


def open_log(path: str) -> tuple[int, int]:
    """A descriptor to append to, and the length so far. A disk that is full costs the log, not the replica."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 0
    return log, os.fstat(log).st_size
