"""A control group of the bed's own, below which its kubelet keeps all pods.

A kubelet ends whatever it finds below its root and does not know: another cluster on this machine must not lie there.
"""

import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from tests.cluster.bed.places import Places

MOUNT: Final = Path("/sys/fs/cgroup")
# What a kubelet wants to limit, in version 2, where a group hands controllers on to those below it.
CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "pids", "hugetlb")


def group_name(places: Places) -> str:
    return f"pilotlight-bed-{hashlib.sha256(str(places.state).encode()).hexdigest()[:8]}"


def make_group(places: Places) -> None:
    for folder in _folders(places):
        with contextlib.suppress(OSError):  # a hierarchy that allows no groups is none that a kubelet asks for
            folder.mkdir(exist_ok=True)
    if (MOUNT / "cgroup.controllers").exists():
        for each in (MOUNT, MOUNT / group_name(places)):
            _hand_on(each)


def remove_group(places: Places) -> None:
    """Whoever is left inside belongs to the bed, and ends with it."""
    for folder in _folders(places):
        if folder.exists():
            _empty(folder)
            for path, _, _ in os.walk(folder, topdown=False):  # which passes over what goes meanwhile
                with contextlib.suppress(OSError):
                    os.rmdir(path)


def _folders(places: Places) -> list[Path]:
    """One in version 2; one per controller in version 1."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT / group_name(places)]
    hierarchies = {path.resolve() for path in MOUNT.iterdir() if path.is_dir()}
    return sorted(path / group_name(places) for path in hierarchies)


def _hand_on(group: Path) -> None:
    offered = (group / "cgroup.controllers").read_text().split()
    for controller in set(CONTROLLERS) & set(offered):
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _empty(folder: Path, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while (pids := _members(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _members(folder: Path) -> set[int]:
    found: set[int] = set()
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            found |= set(map(int, Path(path, "cgroup.procs").read_text().split()))
    return found
