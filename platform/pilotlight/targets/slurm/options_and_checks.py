"""Options of the target `slurm`, and checks of its cluster, also for `platformctl doctor --target slurm`."""

import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.options import Option
from pilotlight.targets.programs import Programs
from pilotlight.targets.slurm.queue import fields
from pilotlight.targets.target import Finding

CONTAINERS: Final = ("pyxis", "enroot", "apptainer", "singularity", "none")
ADDRESSES: Final = ("tunnel", "node")
OPTIONS: Final = (
    Option("partition", "partition of the jobs", required=True, variables=("SLURM_PARTITION",)),
    Option("account", "account that is charged", variables=("SLURM_ACCOUNT",)),
    Option("container", f"one of {', '.join(CONTAINERS)} (default: none)", choices=CONTAINERS),
    Option("mounts", "folders of the node to mount: /models:/models:ro, comma separated"),
    Option("time", "time limit in the format of sbatch; default: the partition's"),
    Option("address", "tunnel (by ssh), or node (open to the cluster)", default="tunnel", choices=ADDRESSES),
    Option("conf", "configuration of the cluster, as in SLURM_CONF of the control process", variables=("SLURM_CONF",)),
)
ENV_CONF: Final = "SLURM_CONF"
LOCAL_FILE_SYSTEMS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs"})


def check_conf(options: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raise UsageError if the control process, whose environment this is, uses another cluster."""
    own = environ.get(ENV_CONF, "")
    if options.get("conf", own) != own:
        problem = f"{ENV_CONF} = {options['conf']}, but the control process has {own or 'none'}"
        raise UsageError(problem, f"platformctl down, then platformctl up with {ENV_CONF} set")


def check_time(limit: str) -> None:
    """Raise UsageError for a time limit that sbatch does not take."""
    if limit and not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}|infinite|unlimited", limit, re.IGNORECASE):
        raise UsageError(f"time = {limit}, must be in the format of sbatch", "minutes, or [DAYS-]HOURS:MINUTES:SECONDS")


def findings(environ: Mapping[str, str], options: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether the controller answers, the partition is up, and nodes reach files and have tunnels."""
    programs = Programs(environ)
    try:
        check_conf(options, environ)
        printed = programs.run_checked(["sinfo", "--noheader", "--format=%R|%a|%D"])
        nodes = programs.run_checked(["scontrol", "--oneliner", "show", "node"]).splitlines()
    except PlatformError as error:
        yield Finding("fail", "controller", str(error), error.hint or "check it with scontrol ping")
        return
    rows = [line.split("|") for line in printed.splitlines()]
    yield Finding("ok", "controller", f"answers; partitions: {', '.join(name for name, *_ in rows)}")
    yield _partition(options.get("partition", ""), {name: state for name, state, _ in rows})
    hosts = (fields(line).get("NodeHostName", "").partition(".")[0] for line in nodes)
    elsewhere = [host for host in hosts if host != socket.gethostname().partition(".")[0]]
    if not elsewhere:
        yield Finding("ok", "files", "this machine is the only node")
        return
    yield from _files(home(environ).root, Path(sys.prefix))
    if options.get("address") != "node":
        found = shutil.which("ssh", path=environ.get("PATH"))
        fix = "" if found else "install an ssh client, or --target-option address=node"
        yield Finding("ok" if found else "fail", "ssh", f"{found or 'not on the PATH'}, for tunnels to nodes", fix)


def gpus(image: str, environ: Mapping[str, str], options: Mapping[str, str]) -> int | None:
    """Return 0 if no node of the partition has GPUs. Raise UsageError if there is no such partition."""
    programs, partition = Programs(environ), options["partition"]
    printed = programs.run_checked(["sinfo", "--noheader", f"--partition={partition}", "--format=%a|%G"])
    if not printed.strip():
        there = " ".join(programs.run_checked(["sinfo", "--noheader", "--format=%R"]).split())
        raise UsageError(f"partition = {partition}: the cluster has no such partition", f"there are: {there}")
    devices = [line.partition("|")[2] for line in printed.splitlines()]
    return None if any(each.startswith("gpu") or ",gpu" in each for each in devices) else 0


def _partition(name: str, states: Mapping[str, str]) -> Finding:
    if name in states:
        up = states[name] == "up"
        return Finding("ok" if up else "fail", "partition", f"{name} is {states[name]}", "" if up else "choose another")
    problem = f"{name}: the cluster has no such partition" if name else "not set"
    return Finding("fail", "partition", problem, f"--target-option partition={next(iter(states), 'NAME')}")


def _files(*paths: Path) -> Iterator[Finding]:
    """Yield whether other machines may see the files: jobs need the home and this installation."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in paths:
        kind = max((len(point), kind) for point, kind in mounts if path.is_relative_to(point))[1]
        local = kind in LOCAL_FILE_SYSTEMS
        fix = "set PILOTLIGHT_HOME to a folder of the shared file system, and install there" if local else ""
        yield Finding("warn" if local else "ok", "files", f"{path} is on {kind}; nodes need access to it", fix)
