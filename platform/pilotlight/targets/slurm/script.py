"""Arguments of `sbatch` and the batch script of a job. Pure; launcher.py submits them.

Neither has values of secrets: `--export` names variables, and Slurm takes their values from sbatch's environment.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from pilotlight.errors import UsageError

# What a program needs to find itself and its files; everything else of the user's environment stays behind.
INHERITED: Final = ("HOME", "LANG", "PATH", "USER")
# Ports of a node by Slurm's number of the job, three each: two jobs on one node differ. Below those of the kernel.
PORTS: Final = range(20000, 30000)
PORTS_EACH: Final = 3
NUMBERED_PORT: Final = f"$(({PORTS.start} + SLURM_JOB_ID % {len(PORTS) // PORTS_EACH} * {PORTS_EACH}))"


class SlurmJob(NamedTuple):
    """A job: where and what it runs. Without a command the entry point of the image runs with `args`."""

    name: str
    log: str
    command: tuple[str, ...]
    options: Mapping[str, str]  # partition, account, container, mounts, time
    args: tuple[str, ...] = ()
    image: str = ""
    container: str = "none"  # what runs the image; none: our predictor is a process of the node
    variables: Mapping[str, str] = {}  # set by the script
    exported: tuple[str, ...] = ()  # variables with values in sbatch's environment
    hidden: tuple[str, ...] = ()  # such variables that the server does not get
    gpus: int = 0
    mounts: tuple[str, ...] = ()  # besides those of the options: SOURCE:PATH[:ro]
    comment: str = ""
    prologue: str = ""  # lines of the script before the server: ports, fetches
    arguments: tuple[str, ...] = ()  # more arguments of sbatch


def sbatch_arguments(job: SlurmJob) -> list[str]:
    optional = {"account": job.options.get("account"), "time": job.options.get("time")}
    return [
        "sbatch", "--parsable", f"--job-name={job.name}", f"--partition={job.options['partition']}",
        "--nodes=1", "--ntasks=1", f"--output={job.log}", f"--comment={job.comment}",
        f"--export={','.join((*job.exported, *job.hidden))}", *([f"--gres=gpu:{job.gpus}"] if job.gpus else ()),
        *(f"--{name}={value}" for name, value in optional.items() if value), *job.arguments,
    ]  # fmt: skip


def script(job: SlurmJob) -> str:
    unset = f"unset {' '.join(job.hidden)}\n" if job.hidden else ""
    start = CONTAINERS[job.container](job)
    return "".join(("#!/bin/bash\n", f"# {job.name}\n", exports(job.variables), job.prologue, unset, start))


def container_kind(option: str, image: str, *, own: bool) -> str:
    """Return the container of a job. Raise UsageError for an image that needs another one; `own`: our predictor."""
    name = option or ("none" if own else "")
    if name in CONTAINERS and (name != "none" or own):
        return name
    known = ", ".join(each for each in CONTAINERS if each != "none")
    raise UsageError(f"container = {name or 'missing'}: {image} needs one of {known}, as the cluster has it")


def exports(env: Mapping[str, str]) -> str:
    """Return export lines of a shell script, quoted."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


def port_check(port: str) -> str:
    """Return lines that end the job with 98 if the port is taken on its node; `port` is an expression of the shell."""
    return (
        f"port={port}\n"
        'if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then\n'
        '  echo "port $port of node $(uname -n) is in use by another job or program" >&2\n  exit 98\nfi\n'
        'echo "node $(uname -n), port $port"\n'
    )


def first_port(job_id: str) -> int:
    """Return the first port of a job on its node, by Slurm's number of it."""
    return PORTS.start + int(job_id) % (len(PORTS) // PORTS_EACH) * PORTS_EACH


def signal_flags(name: str) -> tuple[str, ...]:
    """Return the flags of `scancel --signal` that reach the server in such a container.

    A script that execs the server is the server; enroot is its child; srun runs it in a step of its own.
    """
    return {"pyxis": (), "enroot": ("--full",)}.get(name, ("--batch",))


def _apptainer(job: SlurmJob, program: str = "apptainer") -> str:
    image = job.image if job.image.endswith(".sif") else f"docker://{job.image}"
    verb = "exec" if job.command else "run"
    words = [program, verb, *(["--nv"] if job.gpus else ()), *_each("--bind", _mounts(job)), image]
    return f"exec {shlex.join(words)} {_server(job)}\n"


def _pyxis(job: SlurmJob) -> str:
    # Without --export a step gets sbatch's exports, and not the variables that this script sets.
    words = ["srun", "--export=ALL", "--ntasks=1", f"--container-image={enroot_uri(job.image)}"]
    if mounts := _mounts(job):
        words.append(f"--container-mounts={','.join(mounts)}")
    words += [f"--container-env={','.join(_names(job))}", *([] if job.command else ["--container-entrypoint"])]
    return f"exec {shlex.join(words)} {_server(job)}\n"


def _enroot(job: SlurmJob) -> str:
    """Unpack the image on the node under the job's name, and remove it with the job."""
    name, source = shlex.quote(job.name), shlex.quote(f"docker://{enroot_uri(job.image)}")
    start = ["enroot", "start", "--rw", *_each("--env", _names(job)), *_each("--mount", _mounts(job))]
    return (
        'image="${TMPDIR:-/tmp}/pilotlight-$SLURM_JOB_ID.sqsh"\n'
        f"trap 'enroot remove --force {job.name}; rm -f \"$image\"' EXIT\n"
        "trap : TERM  # the server gets it too: wait for its end\n"
        f'enroot import --output "$image" {source} && enroot create --name {name} "$image" &&\n'
        f"{shlex.join(start)} {name} {_server(job)}\n"
    )


def enroot_uri(image: str) -> str:
    """Return enroot's form of an image: nvcr.io/nvidia/tao:6 → nvcr.io#nvidia/tao:6."""
    first, slash, rest = image.partition("/")
    return f"{first}#{rest}" if slash and (set(first) & {".", ":"} or first == "localhost") else image


def _server(job: SlurmJob) -> str:
    return shlex.join((*job.command, *job.args))


def _names(job: SlurmJob) -> list[str]:
    """Return the variables that a container gets; those of the node's user stay outside."""
    return [name for name in (*job.variables, *job.exported) if name not in INHERITED]


def _mounts(job: SlurmJob) -> list[str]:
    return [*filter(None, job.options.get("mounts", "").split(",")), *job.mounts]


def _each(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values if value for word in (flag, value)]


CONTAINERS: Final[Mapping[str, Callable[[SlurmJob], str]]] = {
    # A process of the node, from this installation on the shared file system.
    "none": lambda job: f"exec {_server(job)}\n",
    "pyxis": _pyxis,
    "enroot": _enroot,
    "apptainer": _apptainer,
    "singularity": partial(_apptainer, program="singularity"),
}
