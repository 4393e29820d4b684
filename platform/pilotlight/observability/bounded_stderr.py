"""Bound of the log file behind standard error, kept while it is written.

A process whose output is a log file calls `rotate_stderr` before each line: the file is renamed to .1, the one before
it to .2, and standard error continues in a new file. Whatever else writes there, such as a traceback, is bounded too.
"""

import logging
import os
import stat
from contextlib import suppress

LIMIT = 10 << 20
FILES = 3  # the log itself, .1 and .2


def rotate_stderr(limit: int = 0, files: int = FILES) -> bool:
    """Rotate the log behind standard error if it has `limit` bytes (0: PILOTLIGHT_LOG_BYTES); return whether.

    Never raises. Does nothing where standard error is no file, or where there is no /proc.
    """
    with suppress(OSError, ValueError):
        status = os.fstat(2)
        limit = limit or int(os.environ.get("PILOTLIGHT_LOG_BYTES") or LIMIT)
        if not stat.S_ISREG(status.st_mode) or status.st_size < limit:
            return False
        path = os.readlink("/proc/self/fd/2")
        if not path.endswith(".log") or not os.path.samestat(status, os.stat(path)):
            return False  # removed, or rotated by another process that writes to it
        fresh = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)  # may fail: first
        for number in range(files - 1, 0, -1):
            older = path if number == 1 else f"{path}.{number - 1}"
            with suppress(FileNotFoundError):
                os.replace(older, f"{path}.{number}")
        os.replace(f"{path}.new", path)
        if os.path.samestat(os.fstat(1), status):
            os.dup2(fresh, 1)
        os.dup2(fresh, 2)
        os.close(fresh)
        return True
    return False


class BoundedStderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log records to standard error, and bounds the file behind it."""

    def emit(self, record: logging.LogRecord) -> None:
        rotate_stderr()
        super().emit(record)
