"""Why a replica ended, in one sentence for a person. Pure, but for reading the end of its log."""

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
    """The kernel ended it within its group, so what it would have used is not known."""
    return f"ended by the kernel: memory limit {_mib(limit)} reached" if limit else "ended by the kernel: out of memory"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def describe(ended: Exit, log: Sequence[str]) -> str:
    """`log` are its last lines; the last error among them says more than a number."""
    if ended.signal is not None:
        name = _NAMES.get(signals.Signals(ended.signal), signals.Signals(ended.signal).name)
        return f"ended by signal {ended.signal} ({name})"
    if ended.code is None:
        return "ended while nobody watched; its exit status is unknown"
    said = last_error(log)
    text = "ended though it should serve" if ended.code == 0 else f"exit code {ended.code}"
    return f"{text}: {said}" if said and ended.code else text


def tail(log: str, since: int = 0) -> list[str]:
    """Whole lines from the end of the file, as far as they were written after `since`; none when it cannot be read."""
    try:
        with Path(log).open("rb") as file:
            length = file.seek(0, 2)
            begin = max(since if since <= length else 0, length - TAIL)
            file.seek(begin)
            lines = file.read(length - begin).decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines if begin in (0, since) else lines[1:]


def port_was_taken(ended: Exit, log: Sequence[str]) -> bool:
    """Whether it could not listen where it was told to, because somebody else was faster."""
    return bool(ended.code) and any(_PORT_TAKEN in line for line in log[-20:])
