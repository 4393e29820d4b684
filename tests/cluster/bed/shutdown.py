"""`make cluster-down`: ends what `up` started and nothing else, also when `up` came only half the way.

Daemons go by the pids they were started with, containers by the bed's own containerd, mounts by the state directory
they lie in. Keys, logs and images stay for the next `up`; the cluster's objects do not.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

from tests.cluster.bed.cgroups import remove_group
from tests.cluster.bed.images import ctr, try_ctr
from tests.cluster.bed.network import remove_bridge, remove_proxy_rules
from tests.cluster.bed.places import BedError, Places
from tests.cluster.bed.processes import alive, stop

# In two rounds: an API server that has lost its etcd takes long to end.
CLIENTS: Final = ("prometheus", "kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver")
DAEMONS: Final = (*CLIENTS, "etcd", "containerd")


def shut_down(places: Places, purge: bool = False) -> None:
    proxied = alive(places, "kube-proxy") or (places.run / "kube-proxy.pid").exists()
    stop(places, "kwok", "kubelet")
    problem: BedError | None = None
    try:
        if alive(places, "containerd"):
            _end_containers(places)
    except BedError as error:  # told when everything else has been ended
        problem = error
    finally:
        stop(places, *CLIENTS)
        stop(places, *DAEMONS)
    for pid in _shims(places.socket):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _unmount(places.state)
    if proxied:
        remove_proxy_rules()
    if places.run.exists():
        remove_bridge(places)
    remove_group(places)
    for path in (places.run, places.state / "etcd", places.state / "kubelet", places.state / "containerd" / "state"):
        shutil.rmtree(path, ignore_errors=True)
    if purge:
        shutil.rmtree(places.state, ignore_errors=True)
    if problem is not None:
        raise problem


def _end_containers(places: Places) -> None:
    """Also their records and writable layers: the next cluster knows nothing of them."""
    for task in ctr(places, "tasks", "ls", "-q").split():
        try_ctr(places, "tasks", "kill", "-s", "SIGKILL", task)
    for container in ctr(places, "containers", "ls", "-q").split():
        try_ctr(places, "tasks", "delete", "-f", container)
        try_ctr(places, "containers", "delete", container)
    for line in ctr(places, "snapshots", "ls").splitlines():
        if line.split()[-1] == "Active":
            try_ctr(places, "snapshots", "rm", line.split()[0])


def _shims(socket: Path) -> list[int]:
    """containerd's helper per pod outlives it; its command line names the socket it belongs to."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "containerd-shim" in words[0] and str(socket) in words:
                found.append(int(path.parent.name))
    return found


def _unmount(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", path], capture_output=True, check=False)
