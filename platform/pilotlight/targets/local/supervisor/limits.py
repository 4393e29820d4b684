"""Keeps a replica within the memory and CPU that its container may use, by the strongest means that this machine has.

In order: control groups of version 2 where they are delegated to us, of version 1 as root, else a watchdog on resident
memory (tending.py) and a lower priority in place of a CPU limit. Never RLIMIT_AS: runtimes reserve addresses that they
never use.
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
from pilotlight.targets.local.supervisor.groups import GroupsV1, GroupsV2

NICE: Final = 5
LOG: Final = logging.getLogger("pilotlight.supervisor")


class Groups(Protocol):
    """Control groups of either version, one for each confined replica."""

    name: str

    def confine(self, replica: str, pid: int, memory: int | None, cpu: float | None) -> None: ...
    def finish(self, replica: str) -> bool: ...
    def sweep(self, living: Collection[str]) -> None: ...


class Limits:
    """The machine is looked at when the first limit is wanted. All but `name` may take milliseconds in the kernel."""

    def __init__(self, home: Home, mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._key = group_key(home)
        self._mount = mount
        self._groups: Groups | None = None
        self._looked = self._told = False
        self._looking = Lock()  # replicas are confined by threads

    @property
    def name(self) -> str:
        """`cgroup v2`, `cgroup v1` or `watchdog`."""
        groups = self._find()
        return groups.name if groups else "watchdog"

    def confine(self, replica: str, pid: int, memory: int | None, cpu: float | None) -> None:
        if memory is None and cpu is None:
            return
        groups = self._find()
        if groups is not None:
            try:
                groups.confine(replica, pid, memory, cpu)
            except ProcessLookupError:
                return
            except OSError as error:
                LOG.warning("limits of %s could not be set: %s", replica, error)
        elif cpu is not None:
            self._lower(pid)

    def _lower(self, pid: int) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, NICE)
        if not self._told:
            self._told = True
            LOG.warning(
                "CPU limits are not enforced here: no control group is ours; such replicas run at nice %d", NICE
            )

    def finish(self, replica: str) -> bool:
        """Whether the kernel ended it for its memory. Its group is removed."""
        groups = self._find() if self._looked else None
        return groups.finish(replica) if groups else False

    def sweep(self, living: Collection[str]) -> None:
        """Removes groups that a supervisor before us could not; without any, the group above them too."""
        groups = self._find()
        if groups is not None:
            groups.sweep(living)
            self._looked = bool(living)  # what is gone is made again for the next replica

    def _find(self) -> Groups | None:
        with self._looking:
            if not self._looked:
                self._groups = find_groups(self._key, self._mount, _own_groups())
                self._looked = True
            return self._groups


def group_key(home: Home) -> str:
    """The name of the group above all those of one home."""
    return "pilotlight-" + hashlib.sha256(str(home.root).encode()).hexdigest()[:8]


def _own_groups() -> str:
    with suppress(OSError):
        return Path("/proc/self/cgroup").read_text()
    return ""


def find_groups(key: str, mount: Path, own: str) -> Groups | None:
    """`own` is what /proc/self/cgroup says: our groups are made below those that we are in, so theirs still hold."""
    places = {names: path for _, names, path in (line.split(":", 2) for line in own.splitlines())}
    if (mount / "cgroup.controllers").exists():
        return GroupsV2.prepare(_place(mount, places.get("", "/")), key)
    memory, cpu = (
        next((_place(mount / names, path) for names, path in places.items() if controller in names.split(",")), None)
        for controller in ("memory", "cpu")
    )
    return GroupsV1.prepare(memory, cpu, key) if memory else None


def _place(mount: Path, path: str) -> Path:
    """In a container the path may be one of the host, which is not mounted here."""
    inside = mount / path.strip("/")
    return inside if inside.is_dir() else mount
