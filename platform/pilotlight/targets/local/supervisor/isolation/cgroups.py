"""Memory and CPU limits of replicas, by the strongest mechanism of this machine.

In order: cgroup v2 if delegated to this user, cgroup v1 as root, else the housekeeper's watchdog on memory that cannot
be reclaimed, and a lower priority in place of a CPU limit. Never RLIMIT_AS: runtimes reserve address space that they
never use.
"""

import hashlib
import logging
import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from pilotlight.targets.local.home_directory import Home

PERIOD_US: Final = 100_000
_ENABLE: Final = "+memory +cpu"
NICE: Final = 5
SYSTEMD_SUBGROUP: Final = "control"  # of the unit, for the control process
LOG: Final = logging.getLogger("pilotlight.supervisor")


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
            with suppress(OSError):
                if leaf.exists():
                    _write(own / "cgroup.procs", str(os.getpid()))
            _remove(leaf)
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


Cgroups = CgroupsV2 | CgroupsV1  # of each replica with limits


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


def _sweep(base: Path, living: Collection[str]) -> None:
    """Remove groups of dead replicas, and the parent group when none is left; it is created again on demand."""
    with suppress(OSError):
        for group in list(base.iterdir()):
            if group.is_dir() and group.name not in living:
                _remove(group)
    with suppress(OSError):
        if not living:
            base.rmdir()


class Limits:
    """Limits of one home's replicas. Cgroups are detected on first use. Methods may block for milliseconds."""

    def __init__(self, home: Home, mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._key = group_key(home)
        self._mount = mount
        self._groups: Cgroups | None = None
        self._detected = self._warned = False
        self._lock = Lock()  # replicas are confined by threads

    @property
    def name(self) -> str:
        """`cgroup v2`, `cgroup v1` or `watchdog`."""
        groups = self.detect()
        return groups.name if groups else "watchdog"

    def confine(self, replica: str, pid: int, memory: int | None, cpu: float | None) -> None:
        if memory is None and cpu is None:
            return
        groups = self.detect()
        if groups is not None:
            try:
                groups.confine(replica, pid, memory, cpu)
            except ProcessLookupError:
                return
            except OSError as error:
                LOG.warning("limits of %s could not be set: %s", replica, error)
        elif cpu is not None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, NICE)
            if not self._warned:
                self._warned = True
                LOG.warning("CPU limits are not enforced: no writable cgroup; replicas run at nice %d", NICE)

    def finish(self, replica: str) -> bool:
        """Remove the replica's group; return whether the kernel killed it for its memory."""
        groups = self.detect() if self._detected else None
        return groups.finish(replica) if groups else False

    def sweep(self, living: Collection[str]) -> None:
        """Remove groups left by earlier replicas; without living ones the parent group too."""
        groups = self.detect()
        if groups is not None:
            groups.sweep(living)
            self._detected = bool(living)  # a removed parent group is created again for the next replica

    def detect(self) -> Cgroups | None:
        """Find and prepare the control groups of this machine, once."""
        with self._lock:
            if not self._detected:
                own = ""
                with suppress(OSError):
                    own = Path("/proc/self/cgroup").read_text()
                # Set by systemd for the process that it has started itself.
                by_systemd = os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())
                self._groups = find_groups(self._key, self._mount, own, by_systemd=by_systemd)
                self._detected = True
            return self._groups


def group_key(home: Home) -> str:
    return "pilotlight-" + hashlib.sha256(str(home.root).encode()).hexdigest()[:8]


def find_groups(key: str, mount: Path, own: str, *, by_systemd: bool = False) -> Cgroups | None:
    """Prepare cgroups below the present ones (`own`: /proc/self/cgroup), so that outer limits still apply.

    systemd restarts a control process in the group of its unit, which fails while subgroups have limits. So limits need
    a subgroup for the control process (DelegateSubgroup); without one there are none but the watchdog's.
    """
    paths = {names: path for _, names, path in (line.split(":", 2) for line in own.splitlines())}
    if (mount / "cgroup.controllers").exists():
        group = _mounted(mount, paths.get("", "/"))
        # Processes that the control process starts are in its subgroup too, beside the groups that it has made.
        delegated = group.name == SYSTEMD_SUBGROUP and (by_systemd or (group.parent / key).is_dir())
        if delegated or group.name == f"{key}-control":
            return CgroupsV2.prepare(group.parent, key)
        return None if by_systemd else CgroupsV2.prepare(group, key)
    memory, cpu = (
        next((_mounted(mount / names, path) for names, path in paths.items() if controller in names.split(",")), None)
        for controller in ("memory", "cpu")
    )
    return CgroupsV1.prepare(memory, cpu, key) if memory else None


def _mounted(mount: Path, path: str) -> Path:
    """Return the group's folder; in a container `path` may be one of the host that is not mounted."""
    inside = mount / path.strip("/")
    return inside if inside.is_dir() else mount
