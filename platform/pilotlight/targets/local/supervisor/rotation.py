"""Logs of replicas: files that they append to themselves, so that nobody must stay alive to read a pipe.

A file that has grown too long is cut at its front while it is written to. Linux can take whole blocks out of the front
of a file in one step (ext4, XFS), and then no line is lost and none is torn; elsewhere the file is copied and
emptied, and what is written within those microseconds is lost.
"""

import errno
import os
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

LIMIT: Final = 10 << 20
FILES: Final = 3  # the log itself, .1 and .2
KEPT_LOGS: Final = 10  # of ended replicas, per service
_CHUNK: Final = 1 << 20
_COLLAPSE_RANGE: Final = 8


def open_log(path: str) -> tuple[int, int]:
    """A descriptor to append to, and the length so far. A disk that is full costs the log, not the replica."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 0
    return log, os.fstat(log).st_size


def rotate(log: Path, limit: int = LIMIT, files: int = FILES) -> bool:
    """Whether the log was cut. On a full disk older files are given up, and the log is left for the next time."""
    try:
        if log.stat().st_size < limit:
            return False
        _shift(log, files)
        with log.open("r+b", buffering=0) as file:
            _cut(file, log)
    except FileNotFoundError:
        return False
    except OSError:
        for number in range(1, files):
            _older(log, number).unlink(missing_ok=True)
        return False
    return True


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def _shift(log: Path, files: int) -> None:
    """.1 becomes .2, and so on; the oldest is overwritten."""
    for number in range(files - 2, 0, -1):
        with suppress(FileNotFoundError):
            _older(log, number).replace(_older(log, number + 1))


def _cut(file: Any, log: Path) -> None:
    """The copy has its name before the log is cut: whoever is interrupted here leaves lines twice, not lines lost."""
    size = os.fstat(file.fileno()).st_size
    lines_end = _end_of_last_line(file, size)
    draft = log.with_name(f"{log.name}.cut")
    try:
        with draft.open("wb") as copy:
            _copy(file, copy, lines_end)
            copy.flush()
            draft.replace(_older(log, 1))
            if not _take_from_front(file, size, lines_end):
                _copy(file, copy, None)
                os.ftruncate(file.fileno(), 0)
    finally:
        draft.unlink(missing_ok=True)


def _end_of_last_line(file: Any, size: int) -> int:
    """Behind the last line break of what is there; the whole size when a line is longer than all we look at."""
    begin = max(0, size - _CHUNK)
    found = os.pread(file.fileno(), size - begin, begin).rfind(b"\n")
    return begin + found + 1 if found >= 0 else size


def _copy(file: Any, copy: BinaryIO, length: int | None) -> None:
    """From where `copy` ends to that length; None: to the end, however far it has moved."""
    while length is None or copy.tell() < length:
        wanted = _CHUNK if length is None else min(_CHUNK, length - copy.tell())
        piece = os.pread(file.fileno(), wanted, copy.tell())
        if not piece:
            return
        copy.write(piece)


def _take_from_front(file: Any, size: int, lines_end: int) -> bool:
    """Takes out whole blocks, and blanks what is left of the lines that were copied."""
    block = os.fstatvfs(file.fileno()).f_bsize
    gone = min(lines_end, size - 1) // block * block
    if not gone or not _collapse(file.fileno(), gone):
        return False
    rest = lines_end - gone
    if rest:
        os.pwrite(file.fileno(), b" " * (rest - 1) + b"\n", 0)
    return True


def _collapse(descriptor: int, length: int) -> bool:
    call = _fallocate()
    if call is None:
        return False
    import ctypes

    while call(descriptor, _COLLAPSE_RANGE, 0, length) != 0:
        if ctypes.get_errno() != errno.EINTR:
            return False
    return True


@cache
def _fallocate() -> Any:
    """The C library's call: Python's own has no modes."""
    import ctypes

    found = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found


def prune(folder: Path, living: Collection[str], keep: int = KEPT_LOGS) -> None:
    """Removes the logs of a service's replicas that ended longest ago."""
    with suppress(OSError):
        ended = [path for path in folder.glob("*.log") if path.stem not in living]
        for log in sorted(ended, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
            for path in [log, *folder.glob(f"{log.name}.*")]:
                path.unlink(missing_ok=True)
