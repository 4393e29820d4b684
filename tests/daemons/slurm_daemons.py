"""A Slurm cluster of one node, this machine: Debian's munged, slurmctld and slurmd with files of their own."""

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.daemons.availability import Unavailable
from tests.daemons.daemons import daemon
from tests.daemons.debian import LIBRARIES, environment, unpacked
from tests.ports import free_port

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
CPUS = 4  # a job takes one, unless it requests more: a fifth has to wait
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=10
MinJobAge=300
InactiveLimit=0
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
{plugins}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=65536 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes={host} MaxTime=INFINITE State=DOWN
"""
# Since 23.11 a node needs a cgroup plugin even if nothing uses it. This one asks nothing of systemd.
CGROUPS = "CgroupPlugin=cgroup/v1\n"


@contextmanager
def slurm(folder: Path, base: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of who submits. Raises Unavailable with the reason."""
    if os.getuid() != 0:
        raise Unavailable("needs root: slurmd starts jobs as their users")
    root = unpacked(*PACKAGES)
    environ = environment(root, {**base, "SLURM_CONF": str(folder / "slurm.conf")})
    _configure(folder, root)
    with _munged(folder, environ), _controller(folder, environ), _node(folder, environ):
        yield environ


def _configure(folder: Path, root: Path) -> None:
    plugins = root / LIBRARIES / "slurm-wlm"
    text = CONFIGURATION.format(
        host=socket.gethostname(), folder=folder, cpus=CPUS, controller=free_port(), node=free_port(),
        plugins=f"PluginDir={plugins}" if plugins.is_dir() else "",
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text(CGROUPS)
    for name in ("controller", "node"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)


def _munged(folder: Path, environ: Mapping[str, str]) -> AbstractContextManager[object]:
    words = [
        "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed",
    ]  # fmt: skip
    return daemon(_found(words, environ), folder / "munged.out", environ, (folder / "munge.socket").exists)


def _controller(folder: Path, environ: Mapping[str, str]) -> AbstractContextManager[object]:
    words = _found(["slurmctld-wlm", "-D", "-c"], environ)
    return daemon(words, folder / "slurmctld.log", environ, lambda: "UP" in _said(["scontrol", "ping"], environ))


def _node(folder: Path, environ: Mapping[str, str]) -> AbstractContextManager[object]:
    step = shutil.which("slurmstepd-wlm", path=environ["PATH"]) or "slurmstepd"
    words = _found(["slurmd-wlm", "-D", "-d", step], environ)
    state = ["sinfo", "--noheader", "--partition=cpu", "--format=%t"]
    return daemon(words, folder / "slurmd.log", environ, lambda: "idle" in _said(state, environ))


def _found(words: list[str], environ: Mapping[str, str]) -> list[str]:
    """Debian calls them slurmd-wlm, and makes slurmd of it when it installs them."""
    path = shutil.which(words[0], path=environ["PATH"]) or shutil.which(
        words[0].removesuffix("-wlm"), path=environ["PATH"]
    )
    if path is None:
        raise Unavailable(f"{words[0]} is in none of {', '.join(PACKAGES)}")
    return [path, *words[1:]]


def _said(words: list[str], environ: Mapping[str, str]) -> str:
    return subprocess.run(words, env=dict(environ), capture_output=True, text=True, timeout=60).stdout
