"""Log files of replicas and processes: bounded, private, removed after a while; and the exit reasons that they show.

The output of replicas goes through pipes to the log writer (output_pipes.py), which bounds it while it is written. The
control process and the gateway append to their logs themselves, as do replicas where no pipe can be made; those are
rotated in place. Linux can remove whole blocks from the front of a file atomically (FALLOC_FL_COLLAPSE_RANGE on ext4
and XFS): no line is lost or torn. Elsewhere the file is copied and truncated, and lines written in between are lost.
"""

import errno
import os
import shutil
import signal as signals
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from pilotlight.errors import UsageError
from pilotlight.targets.error_from_log import last_error
from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.wire.machine import last_lines

LIMIT: Final = 10 << 20
FILES: Final = 3  # the log itself, .1 and .2
MAX_ENDED_LOGS: Final = 10  # of ended replicas, per service
_CHUNK: Final = 1 << 20
_COLLAPSE_RANGE: Final = 8
TAIL: Final = 16384
_NAMES: Final = {
    signals.SIGSEGV: "segmentation fault", signals.SIGABRT: "aborted", signals.SIGBUS: "bus error",
    signals.SIGILL: "illegal instruction", signals.SIGFPE: "arithmetic error", signals.SIGKILL: "killed",
    signals.SIGTERM: "terminated",
}  # fmt: skip


class LogSettings(NamedTuple):
    """Bounds of logs; those of deleted services go after `retention_s`, or when all together exceed `total` bytes."""

    limit: int = LIMIT  # bytes of one file
    retention_s: float = 7 * 86400.0
    total: int = 1 << 30


def log_settings(environ: Mapping[str, str]) -> LogSettings:
    """Read the settings from environment variables. Raise UsageError for what is no positive whole number."""
    defaults = LogSettings()
    return LogSettings(
        _number(environ, "PILOTLIGHT_LOG_BYTES", defaults.limit, "bytes of one log file"),
        86400.0 * _number(environ, "PILOTLIGHT_LOG_DAYS", round(defaults.retention_s / 86400), "days"),
        _number(environ, "PILOTLIGHT_LOG_TOTAL_BYTES", defaults.total, "bytes of all logs"),
    )


def _number(environ: Mapping[str, str], name: str, default: int, unit: str) -> int:
    text = environ.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not int(text):
        raise UsageError(f"{name} = {text}, must be a whole number of {unit} above 0")
    return int(text)


def open_log(path: str) -> tuple[int, int]:
    """Return a descriptor to append to and the present length; /dev/null if the file cannot be opened."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 0
    return log, os.fstat(log).st_size


def rotate(log: Path, limit: int = LIMIT, files: int = FILES) -> bool:
    """Rotate a log of at least `limit` bytes; return whether. On a full disk the older files are removed instead."""
    try:
        found = log.stat()
        if found.st_mode & 0o077:
            log.chmod(0o600)
        if found.st_size < limit:
            return False
        for number in range(files - 2, 0, -1):
            with suppress(FileNotFoundError):
                _older(log, number).replace(_older(log, number + 1))
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


def _cut(file: Any, log: Path) -> None:
    """Copy whole lines to .1, then cut them. In this order an interruption duplicates lines but loses none."""
    size = os.fstat(file.fileno()).st_size
    begin = max(0, size - _CHUNK)
    index = os.pread(file.fileno(), size - begin, begin).rfind(b"\n")
    lines_end = begin + index + 1 if index >= 0 else size
    draft = log.with_name(f"{log.name}.cut")
    try:
        with open(draft, "wb", opener=partial(os.open, mode=0o600)) as copy:
            _copy(file, copy, lines_end)
            copy.flush()
            draft.replace(_older(log, 1))
            if not _cut_front(file, size, lines_end):
                _copy(file, copy, None)
                os.ftruncate(file.fileno(), 0)
    finally:
        draft.unlink(missing_ok=True)


def _copy(file: Any, copy: BinaryIO, length: int | None) -> None:
    """Append to `copy` from its present length up to `length`; None: to the end of a growing file."""
    while length is None or copy.tell() < length:
        size = _CHUNK if length is None else min(_CHUNK, length - copy.tell())
        piece = os.pread(file.fileno(), size, copy.tell())
        if not piece:
            return
        copy.write(piece)


def _cut_front(file: Any, size: int, lines_end: int) -> bool:
    """Remove whole blocks from the front, and blank the rest of the copied lines; return whether supported."""
    block = os.fstatvfs(file.fileno()).f_bsize
    gone = min(lines_end, size - 1) // block * block
    if not gone or not _collapse(file.fileno(), gone):
        return False
    if rest := lines_end - gone:
        os.pwrite(file.fileno(), b" " * (rest - 1) + b"\n", 0)
    return True


@cache
def _fallocate() -> Any:
    """Return the C library's fallocate: os.posix_fallocate has no modes."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return call


def _collapse(descriptor: int, length: int) -> bool:
    import ctypes

    call = _fallocate()
    if call is None:
        return False
    while call(descriptor, _COLLAPSE_RANGE, 0, length) != 0:
        if ctypes.get_errno() != errno.EINTR:
            return False
    return True


def prune(folder: Path, living: Collection[str], keep: int = MAX_ENDED_LOGS) -> None:
    """Remove the logs of replicas that ended longest ago, beyond `keep`."""
    with suppress(OSError):
        ended = [path for path in folder.glob("*.log") if path.stem not in living]
        for log in sorted(ended, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
            for path in [log, *folder.glob(f"{log.name}.*")]:
                path.unlink(missing_ok=True)


class ServiceLogs(NamedTuple):
    """Log folder of a service: bytes in it, and when it was last written, in seconds since the epoch."""

    folder: Path
    size: int
    modified_at: float


def service_logs(logs: Path) -> list[ServiceLogs]:
    """Measure the log folders of all services, deleted ones included."""
    found = []
    for folder in logs.glob("*/*/"):
        with suppress(OSError):
            files = [each.stat() for each in folder.iterdir()]
            modified = max((file.st_mtime for file in files), default=folder.stat().st_mtime)
            found.append(ServiceLogs(folder, sum(file.st_size for file in files), modified))
    return found


def expired_logs(
    found: Sequence[ServiceLogs], deployed: Collection[tuple[str, str]], settings: LogSettings, now: float
) -> list[Path]:
    """Return the log folders to remove: of deleted services, after the retention time or if all logs take too much."""
    excess = sum(each.size for each in found) - settings.total
    expired = []
    for each in sorted(found, key=lambda logs: logs.modified_at):
        if (each.folder.parent.name, each.folder.name) in deployed:
            continue
        if excess > 0 or now - each.modified_at > settings.retention_s:
            expired.append(each.folder)
            excess -= each.size
    return expired


def remove_expired(logs: Path, deployed: Collection[tuple[str, str]], settings: LogSettings, now: float) -> None:
    for folder in expired_logs(service_logs(logs), deployed, settings, now):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # other services of the namespace have logs
            folder.parent.rmdir()


def over_limit(used: int, limit: int) -> str:
    return f"used {_mib(used)}, limit {_mib(limit)}"


def out_of_memory(limit: int | None) -> str:
    return f"ended by the kernel: memory limit {_mib(limit)} reached" if limit else "ended by the kernel: out of memory"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def describe(ended: Exit, log: Sequence[str]) -> str:
    """Describe an exit by signal or code, with the last error among the log's last lines."""
    if ended.signal is not None:
        name = _NAMES.get(signals.Signals(ended.signal), signals.Signals(ended.signal).name)
        return f"ended by signal {ended.signal} ({name})"
    if ended.code is None:
        return "ended while nobody watched; its exit status is unknown"
    error = last_error(log)
    text = "ended though it should serve" if ended.code == 0 else f"exit code {ended.code}"
    return f"{text}: {error}" if error and ended.code else text


def tail(log: str, since: int = 0) -> list[str]:
    """Return whole lines from the end of the file written after offset `since`; none if it cannot be read."""
    with suppress(OSError):
        return last_lines(Path(log), since=since, max_bytes=TAIL, whole=True)
    return []
