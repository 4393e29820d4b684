"""Memory and CPU limits of replicas, by the strongest mechanism that this machine has.

In order: cgroup v2 if delegated to this user, cgroup v1 as root, else a watchdog on resident memory (tending.py) and a
lower priority in place of a CPU limit. Never RLIMIT_AS: runtimes reserve address space that they never use.
"""

import hashlib
import logging
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from pilotlight.targets.local.home import Home
from pilotlight.targets.local.supervisor.groups import CgroupsV1, CgroupsV2

NICE: Final = 5
LOG: Final = logging.getLogger("pilotlight.supervisor")


class Cgroups(Protocol):
    """Control groups of either version, one for each replica with limits."""

    name: str

    def confine(self, replica: str, pid: int, memory: int | None, cpu: float | None) -> None: ...
    def finish(self, replica: str) -> bool: ...
    def sweep(self, living: Collection[str]) -> None: ...


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
        groups = self._detect()
        return groups.name if groups else "watchdog"

    def confine(self, replica: str, pid: int, memory: int | None, cpu: float | None) -> None:
        if memory is None and cpu is None:
            return
        groups = self._detect()
        if groups is not None:
            try:
                groups.confine(replica, pid, memory, cpu)
            except ProcessLookupError:
                return
            except OSError as error:
                LOG.warning("limits of %s could not be set: %s", replica, error)
        elif cpu is not None:
            self._lower_priority(pid)

    def _lower_priority(self, pid: int) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, NICE)
        if not self._warned:
            self._warned = True
            LOG.warning(
                "CPU limits are not enforced here: no control group is ours; such replicas run at nice %d", NICE
            )

    def finish(self, replica: str) -> bool:
        """Remove the replica's group; return whether the kernel killed it for its memory."""
        groups = self._detect() if self._detected else None
        return groups.finish(replica) if groups else False

    def sweep(self, living: Collection[str]) -> None:
        """Remove groups left by earlier replicas; without living ones the parent group too."""
        groups = self._detect()
        if groups is not None:
            groups.sweep(living)
            self._detected = bool(living)  # a removed parent group is created again for the next replica

    def _detect(self) -> Cgroups | None:
        with self._lock:
            if not self._detected:
                self._groups = find_groups(self._key, self._mount, _own_groups())
                self._detected = True
            return self._groups


def group_key(home: Home) -> str:
    """Return the name of the parent group of one home's replicas."""
    return "pilotlight-" + hashlib.sha256(str(home.root).encode()).hexdigest()[:8]


def _own_groups() -> str:
    with suppress(OSError):
        return Path("/proc/self/cgroup").read_text()
    return ""


def find_groups(key: str, mount: Path, own: str) -> Cgroups | None:
    """Prepare cgroups below the present ones (`own`: /proc/self/cgroup), so that outer limits still apply."""
    paths = {names: path for _, names, path in (line.split(":", 2) for line in own.splitlines())}
    if (mount / "cgroup.controllers").exists():
        return CgroupsV2.prepare(_mounted(mount, paths.get("", "/")), key)
    memory, cpu = (
        next((_mounted(mount / names, path) for names, path in paths.items() if controller in names.split(",")), None)
        for controller in ("memory", "cpu")
    )
    return CgroupsV1.prepare(memory, cpu, key) if memory else None


def _mounted(mount: Path, path: str) -> Path:
    """Return the group's folder; in a container `path` may be one of the host that is not mounted."""
    inside = mount / path.strip("/")
    return inside if inside.is_dir() else mount
