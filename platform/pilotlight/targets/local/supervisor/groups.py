"""Control groups v1 and v2: one child group for each replica with limits. Used by limits.py."""

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

PERIOD_US: Final = 100_000
_ENABLE: Final = "+memory +cpu"


class CgroupsV2:
    name = "cgroup v2"

    def __init__(self, base: Path) -> None:
        self._base = base

    @classmethod
    def prepare(cls, own: Path, key: str) -> "CgroupsV2 | None":
        """Create the parent group `key` below `own`; None: the controllers are not delegated to this user.

        A cgroup v2 with processes cannot enable controllers for its children, so this process moves into a child group
        of its own if it is the only one.
        """
        base, leaf = own / key, own / f"{key}-control"
        try:
            base.mkdir(exist_ok=True)
            try:
                _write(own / "cgroup.subtree_control", _ENABLE)
            except OSError:
                leaf.mkdir(exist_ok=True)
                _write(leaf / "cgroup.procs", str(os.getpid()))
                _write(own / "cgroup.subtree_control", _ENABLE)
            _write(base / "cgroup.subtree_control", _ENABLE)
        except OSError:
            _rejoin(own, leaf)
            _remove(base)
            return None
        return cls(base)

    def confine(self, replica: str, pid: int, memory: int | None, cpu: float | None) -> None:
        group = self._base / replica
        group.mkdir(exist_ok=True)
        if memory is not None:
            _write(group / "memory.max", str(memory))
            with suppress(OSError):
                _write(group / "memory.swap.max", "0")
        if cpu is not None:
            _write(group / "cpu.max", f"{int(cpu * PERIOD_US)} {PERIOD_US}")
        _write(group / "cgroup.procs", str(pid))

    def finish(self, replica: str) -> bool:
        group = self._base / replica
        killed = _count(group / "memory.events", "oom_kill")
        _remove(group)
        return killed > 0

    def sweep(self, living: Collection[str]) -> None:
        _sweep(self._base, living)


class CgroupsV1:
    """Memory and CPU are separate hierarchies; the one for CPU may be missing."""

    name = "cgroup v1"

    def __init__(self, memory: Path, cpu: Path | None) -> None:
        self._memory, self._cpu = memory, cpu

    @classmethod
    def prepare(cls, memory: Path, cpu: Path | None, key: str) -> "CgroupsV1 | None":
        try:
            (memory / key).mkdir(exist_ok=True)
            if cpu is not None:
                (cpu / key).mkdir(exist_ok=True)
        except OSError:
            return None
        return cls(memory / key, cpu / key if cpu else None)

    def confine(self, replica: str, pid: int, memory: int | None, cpu: float | None) -> None:
        if memory is not None:
            group = self._memory / replica
            group.mkdir(exist_ok=True)
            _write(group / "memory.limit_in_bytes", str(memory))
            with suppress(OSError):  # memory plus swap; not every kernel accounts swap
                _write(group / "memory.memsw.limit_in_bytes", str(memory))
            _write(group / "cgroup.procs", str(pid))
        if cpu is not None and self._cpu is not None:
            group = self._cpu / replica
            group.mkdir(exist_ok=True)
            _write(group / "cpu.cfs_period_us", str(PERIOD_US))
            _write(group / "cpu.cfs_quota_us", str(int(cpu * PERIOD_US)))
            _write(group / "cgroup.procs", str(pid))

    def finish(self, replica: str) -> bool:
        killed = _count(self._memory / replica / "memory.oom_control", "oom_kill")
        for base in self._bases():
            _remove(base / replica)
        return killed > 0

    def sweep(self, living: Collection[str]) -> None:
        for base in self._bases():
            _sweep(base, living)

    def _bases(self) -> list[Path]:
        return [self._memory] if self._cpu is None else [self._memory, self._cpu]


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)


def _count(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _remove(group: Path) -> None:
    for _ in range(5):  # the kernel needs a moment after the last process; a later sweep removes the rest
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return


def _rejoin(own: Path, leaf: Path) -> None:
    with suppress(OSError):
        if leaf.exists():
            _write(own / "cgroup.procs", str(os.getpid()))
    _remove(leaf)


def _sweep(base: Path, living: Collection[str]) -> None:
    """Remove groups of dead replicas, and the parent group when none is left; it is created again on demand."""
    with suppress(OSError):
        for group in list(base.iterdir()):
            if group.is_dir() and group.name not in living:
                _remove(group)
    with suppress(OSError):
        if not living:
            base.rmdir()
