"""Arguments of `sbatch` and the batch script for a job. Pure; slurm.py submits them.

Neither has values of secrets: `--export` names variables, and Slurm takes their values from sbatch's environment.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from pilotlight.errors import UsageError
from pilotlight.microservices.platforms.commands import exports, split_list
from pilotlight.microservices.platforms.host_ports import ENV_HOST, ENV_PORT, LOOPBACK, is_own
from pilotlight.microservices.registry.records import Job

# A node's ports, by Slurm's number of the job: two on one node differ. Below those that kernels hand out.
PORTS: Final = range(20000, 30000)
# What a program needs to find itself and its files; everything else of the user's environment stays behind.
INHERITED: Final = ("HOME", "LANG", "PATH", "USER")


class SlurmTarget(NamedTuple):
    """Partition and options of the job, and what the partition provides."""

    partition: str
    account: str
    log: str
    gpus: bool = False  # whether the partition has any
    python: str = "python"  # runs the predictor without a container


def sbatch_arguments(job: Job, target: SlurmTarget, names: Iterable[str]) -> list[str]:
    limit = job.options.get("time", "")
    return [
        "sbatch", "--parsable", f"--job-name={job.id}", f"--partition={target.partition}",
        f"--account={target.account}", "--nodes=1", "--ntasks=1", f"--output={target.log}", f"--comment={comment(job)}",
        f"--export={','.join(names)}", *([f"--gres=gpu:{job.num_gpus}"] if target.gpus else ()),
        *([f"--time={limit}"] if limit else ()),
    ]  # fmt: skip


def comment(job: Job) -> str:
    """Return the job's comment with its ports, on the submit host and on other nodes; read back from the queue."""
    return f"port={job.host_port}/job" if is_own(job) else f"port={job.port}/{job.port}"


def port_of(text: str, slurm_id: str, here: bool) -> int:
    """Return the port in a job's comment; 0 for another comment."""
    local, _, elsewhere = text.removeprefix("port=").partition("/")
    word = local if here else elsewhere
    return PORTS.start + int(slurm_id) % len(PORTS) if word == "job" else int(word) if word.isdecimal() else 0


def script(job: Job, target: SlurmTarget) -> str:
    return "".join((
        "#!/bin/bash\n",
        f"# microservice {job.id}\n",
        exports(job.env),
        _port(job),
        'if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then\n',
        '  echo "port $port of node $(uname -n) is taken: another job or program listens there" >&2\n  exit 98\nfi\n',
        'echo "node $(uname -n), port $port"\n',
        container(job)(job, target),
    ))  # fmt: skip


def _port(job: Job) -> str:
    if not is_own(job):
        return f"port={job.port}\n"
    return (
        f'if [ "$(uname -n)" = "$SLURM_SUBMIT_HOST" ]; then port={job.host_port}\n'
        f"else port=$(({PORTS.start} + SLURM_JOB_ID % {len(PORTS)})); fi\n"
        f'export {ENV_PORT}="$port"\n' + (f"export {ENV_HOST}={LOOPBACK}\n" if job.closed else "")
    )


def container(job: Job) -> Callable[[Job, SlurmTarget], str]:
    name = job.options.get("container", "") or ("none" if is_own(job) else "")
    if name in CONTAINERS and (name != "none" or is_own(job)):
        return CONTAINERS[name]
    known = ", ".join(each for each in CONTAINERS if each != "none")
    raise UsageError(f"container = {name or 'missing'}: {job.image} needs one of {known}, as the cluster has it")


def _direct(job: Job, target: SlurmTarget) -> str:
    """Run the predictor as a process of the node, from this installation on the shared file system."""
    return f"export PILOTLIGHT_PYTHON={shlex.quote(target.python)}\nexec {_inner(job)}\n"


def _apptainer(job: Job, target: SlurmTarget, program: str = "apptainer") -> str:
    image = job.image if job.image.endswith(".sif") else f"docker://{job.image}"
    words = [program, "exec", *(["--nv"] if target.gpus else ()), *_each("--bind", _mounts(job)), image]
    return f"exec {shlex.join(words)} {_inner(job)}\n"


def _singularity(job: Job, target: SlurmTarget) -> str:
    return _apptainer(job, target, "singularity")


def _pyxis(job: Job, target: SlurmTarget) -> str:
    # Without --export a step gets sbatch's exports, and not the variables that this script sets.
    words = ["srun", "--export=ALL", "--ntasks=1", f"--container-image={enroot_uri(job.image)}"]
    if mounts := _mounts(job):
        words.append(f"--container-mounts={','.join(mounts)}")
    return f"exec {shlex.join([*words, f'--container-env={_names(job)}'])} {_inner(job)}\n"


def _enroot(job: Job, target: SlurmTarget) -> str:
    """Unpack the image on the node under the job's name, and remove it with the job."""
    name, source = shlex.quote(job.id), shlex.quote(f"docker://{enroot_uri(job.image)}")
    start = ["enroot", "start", "--rw", *_each("--env", _names(job).split(",")), *_each("--mount", _mounts(job))]
    return (
        'image="${TMPDIR:-/tmp}/microservice-$SLURM_JOB_ID.sqsh"\n'
        f"trap 'enroot remove --force {job.id}; rm -f \"$image\"' EXIT\n"
        f'enroot import --output "$image" {source} && enroot create --name {name} "$image" &&\n'
        f"{shlex.join(start)} {name} {_inner(job)}\n"
    )


def enroot_uri(image: str) -> str:
    """Return enroot's form of an image: nvcr.io/nvidia/tao:6 → nvcr.io#nvidia/tao:6."""
    first, slash, rest = image.partition("/")
    return f"{first}#{rest}" if slash and (set(first) & {".", ":"} or first == "localhost") else image


def _inner(job: Job) -> str:
    return f"/bin/sh -c {shlex.quote(job.command)}"


def _names(job: Job) -> str:
    return ",".join((*job.env, *job.secrets, *_own(job)))


def _own(job: Job) -> list[str]:
    return [ENV_PORT, *([ENV_HOST] if job.closed else ())] if is_own(job) else []


def _mounts(job: Job) -> list[str]:
    return split_list(job.options.get("mounts", ""))


def _each(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values if value for word in (flag, value)]


CONTAINERS: Final[Mapping[str, Callable[[Job, SlurmTarget], str]]] = {
    "none": _direct,
    "pyxis": _pyxis,
    "enroot": _enroot,
    "apptainer": _apptainer,
    "singularity": _singularity,
}
