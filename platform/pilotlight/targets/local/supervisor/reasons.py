"""Exit reasons of replicas, one sentence for users. Pure, except for reading the log's tail."""

import signal as signals
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.targets.log_lines import last_error

TAIL: Final = 16384
_NAMES: Final = {
    signals.SIGSEGV: "segmentation fault", signals.SIGABRT: "aborted", signals.SIGBUS: "bus error",
    signals.SIGILL: "illegal instruction", signals.SIGFPE: "arithmetic error", signals.SIGKILL: "killed",
    signals.SIGTERM: "terminated",
}  # fmt: skip
_PORT_TAKEN: Final = "ddress already in use"


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
    try:
        with Path(log).open("rb") as file:
            length = file.seek(0, 2)
            begin = max(since if since <= length else 0, length - TAIL)
            file.seek(begin)
            lines = file.read(length - begin).decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines if begin in (0, since) else lines[1:]


def port_in_use(ended: Exit, log: Sequence[str]) -> bool:
    """Whether the process exited because its port was in use."""
    return bool(ended.code) and any(_PORT_TAKEN in line for line in log[-20:])
