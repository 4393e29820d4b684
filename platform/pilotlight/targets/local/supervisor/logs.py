"""Log files of replicas and processes: bounded, private, removed after a while; and the exit reasons that they show.

The output of replicas goes through pipes to the log writer (output_pipes.py), which bounds it while it is written; the
control process and the gateway bound their own (bounded_stderr.py). `rotate` is for replicas that append to a file
themselves: jobs of Slurm, and those started while no pipe could be made.
"""

import os
import shutil
import signal as signals
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.errors import UsageError
from pilotlight.observability.bounded_stderr import FILES, LIMIT
from pilotlight.targets.error_from_log import last_error
from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.wire.machine import last_lines

MAX_ENDED_LOGS: Final = 10  # of ended replicas, per service
TAIL: Final = 16384
RAISE_LIMIT: Final = "raise resources.limits.memory"
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


def open_log(path: str) -> int:
    """Return a descriptor to append to; of /dev/null if the file cannot be opened."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def rotate(log: Path, limit: int = LIMIT) -> bool:
    """Copy a log of at least `limit` bytes to .1 and empty it; return whether. Lines written in between are lost.

    On a full disk the older files are removed instead.
    """
    older = [log.with_name(f"{log.name}.{number}") for number in range(1, FILES)]
    try:
        log.chmod(0o600)  # Slurm may have made it by the umask
        if log.stat().st_size < limit:
            return False
        with suppress(FileNotFoundError):
            older[0].replace(older[1])
        with log.open("rb") as source, open(older[0], "wb", opener=partial(os.open, mode=0o600)) as copy:
            shutil.copyfileobj(source, copy)
        os.truncate(log, 0)
    except FileNotFoundError:
        return False
    except OSError:
        for path in older:
            path.unlink(missing_ok=True)
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
    folders = []
    for folder in logs.glob("*/*/"):
        with suppress(OSError):
            files = [each.stat() for each in folder.iterdir()]
            modified = max((file.st_mtime for file in files), default=folder.stat().st_mtime)
            folders.append(ServiceLogs(folder, sum(file.st_size for file in files), modified))
    return folders


def expired_logs(
    folders: Sequence[ServiceLogs], deployed: Collection[tuple[str, str]], settings: LogSettings, now: float
) -> list[Path]:
    """Return the log folders to remove: of deleted services, after the retention time or if all logs take too much."""
    excess = sum(each.size for each in folders) - settings.total
    expired = []
    for each in sorted(folders, key=lambda logs: logs.modified_at):
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
    return f"used {_mib(used)}, limit {_mib(limit)}; {RAISE_LIMIT}"


def out_of_memory(limit: int | None) -> str:
    reached = f"memory limit {_mib(limit)} reached; {RAISE_LIMIT}" if limit else "out of memory"
    return f"ended by the kernel: {reached}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def describe(ended: Exit, log: Sequence[str]) -> str:
    """Describe an exit by signal or code, with the last error among the log's last lines."""
    if ended.signal is not None:
        name = _NAMES.get(signals.Signals(ended.signal), signals.Signals(ended.signal).name)
        return f"ended by signal {ended.signal} ({name})"
    if ended.code is None:
        return "exited while the control process was down; exit status unknown"
    error = last_error(log)
    text = "exited unexpectedly" if ended.code == 0 else f"exit code {ended.code}"
    return f"{text}: {error}" if error and ended.code else text


def tail(log: str, since: int = 0) -> list[str]:
    """Return whole lines from the end of the file written after offset `since`; none if it cannot be read."""
    with suppress(OSError):
        return last_lines(Path(log), since=since, max_bytes=TAIL, whole=True)
    return []
