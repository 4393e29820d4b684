"""A replica as a Slurm job, and where its server is reached. Pure; launcher.py submits and watches it."""

import re
import shlex
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight import contract
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
from pilotlight.targets.local.supervisor import container_command
from pilotlight.targets.local.supervisor.container_command import PORTS
from pilotlight.targets.local.supervisor.launcher import ReplicaAddress
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica
from pilotlight.targets.slurm.queue import Queued
from pilotlight.targets.slurm.script import (
    INHERITED,
    NUMBERED_PORT,
    SlurmJob,
    container_kind,
    first_port,
    port_check,
    signal_flags,
)
from pilotlight.targets.ssh_tunnel import Endpoint, Forwards
from pilotlight.wire.machine import LOOPBACK
from pilotlight.wire.unix_socket import SCHEME

# Variables that change sbatch itself: those of a replica are set by the script, and no secret has such a name.
SBATCH: Final = re.compile(r"PATH|HOME|LANG|USER|TMPDIR|(LD|SLURM|SBATCH|MUNGE)_\w+")
_HOSTS: Final = ("INFERENCE_HOST", "INFERENCE_GRPC_ADDRESS", "INFERENCE_METRICS_ADDRESS")
_PORTS: Final = ("INFERENCE_HTTP_PORT", "INFERENCE_GRPC_PORT", "INFERENCE_METRICS_PORT")
BEGUN: Final = "begun"  # file in the folder of a job whose script has begun
_FETCH: Final = "PILOTLIGHT_FETCH"  # prefix of variables that only a fetch gets


class Note(NamedTuple):
    """Comment of a job: what a later control process needs to know of it."""

    home: str  # key of the home
    container: str = "none"
    port: int = 0  # its own; 0: our predictor, on sockets of its folder, or with `node` on ports by its number
    address: str = "tunnel"
    host_port: int = 0  # of this machine, where our predictor is reached instead; 0: none

    @property
    def text(self) -> str:
        return ":".join(("pilotlight", *map(str, self)))


def read_note(comment: str) -> Note | None:
    """Parse the comment of a job; None: not a replica."""
    word, home, container, port, address, own = [*comment.split(":"), *[""] * 6][:6]
    if word != "pilotlight" or not port.isdecimal():
        return None
    return Note(home, container, int(port), address, int(own) if own.isdecimal() else 0)


def home_key(home: Home) -> str:
    return sha256(str(home.root).encode()).hexdigest()[:12]


def job_folder(home: Home, replica: str) -> Path:
    """Return the folder of a job's sockets and fetched models; short, since ssh takes socket paths up to 107 bytes."""
    return home.run / "slurm" / sha256(replica.encode()).hexdigest()[:10]


def container_of(container: ContainerSpec) -> str:
    """Return what runs an image, as in `script.CONTAINERS`. Raise UsageError if no such container can."""
    own = contract.is_predictor_image(container.image)
    return container_kind(container.options.get("container", ""), container.image, own=own)


def replica_job(
    launch: Launch, record: Replica, home: Home, gateway_url: str, python: str
) -> tuple[SlurmJob, dict[str, str]]:
    """Return the job of a replica, and the variables that sbatch must have in its environment."""
    container, folder = launch.revision.container, job_folder(home, launch.replica)
    own = contract.is_predictor_image(container.image)
    kind = container_of(container)
    reached = container.options.get("address", "tunnel")
    note = Note(home_key(home), kind, 0 if own else container.port, reached, container.host_port)
    env = _variables(launch, note, home, gateway_url)
    values = {name: value for name, value in env.items() if not SBATCH.fullmatch(name)}
    fetched = [_fetch(launch, number, f"{folder}/{number}", python) for number in range(len(container.fetches))]
    fetch_values = {name: value for _, variables in fetched for name, value in variables.items()}
    begun = f": > {shlex.quote(f'{folder}/{BEGUN}')}\n"
    command, args = container.command, container.args
    if own:
        command = container_command.command(container, python).argv if kind == "none" else command
        args = () if kind == "none" else container_command.without_addresses(args)
    job = SlurmJob(
        launch.replica, record.log, command, container.options, args, container.image, kind,
        variables={name: value for name, value in env.items() if name not in values},
        exported=(*INHERITED, *values), hidden=tuple(fetch_values), gpus=container.gpus,
        mounts=() if kind == "none" else tuple(_mounts(container, folder, home)), comment=note.text,
        prologue="".join((begun, _ports(note, container.host_ip), *(lines for lines, _ in fetched))),
        arguments=_arguments(container),
    )  # fmt: skip
    return job, {**values, **fetch_values}


def _variables(launch: Launch, note: Note, home: Home, gateway_url: str) -> dict[str, str]:
    """Return the variables of the server; of this process it inherits nothing."""
    container = launch.revision.container
    if note.port:
        return {**container.env, **launch.secret_values(container.secret_env), **launch.extra_env}
    env = container_command.variables(launch, (), home, gateway_url, {})
    if container.gpus:  # set by Slurm for the devices of the job
        del env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]
    folder = job_folder(home, launch.replica)
    if note.container != "none" and not container.own_health:  # its model may be an org's
        env[contract.ENV_CACHE_DIR] = f"{folder}/cache"
    sockets = f"{SCHEME}{folder}"
    on_node = note.address == "node" and not note.host_port
    host = "0.0.0.0" if on_node else sockets  # noqa: S104 - the user's choice
    return {**env, **dict.fromkeys(_HOSTS, host), _PORTS[0]: str(PORTS.http)}


def _ports(note: Note, host_ip: str) -> str:
    if note.port:
        return port_check(str(note.port))
    if note.host_port:  # on another node a tunnel leads from this port to its sockets
        here = (
            port_check(str(note.host_port))
            + f"export {_HOSTS[0]}={shlex.quote(host_ip or LOOPBACK)} {_PORTS[0]}=$port\n"
        )
        return f'if [ "$(uname -n)" = "$SLURM_SUBMIT_HOST" ]; then\n{here}fi\n'
    if note.address != "node":
        return ""
    exports = (f"export {name}=$((port + {offset}))\n" for offset, name in enumerate(_PORTS))
    return port_check(NUMBERED_PORT) + "".join(exports)


def _fetch(launch: Launch, number: int, folder: str, python: str) -> tuple[str, Mapping[str, str]]:
    """Return lines that fetch a model, and the variables of these lines: a subshell gives them their own names."""
    fetch = launch.revision.container.fetches[number]
    env = {**fetch.env, **launch.secret_values(fetch.secret_env)}
    hidden = {name: f"{_FETCH}{number}_{name}" for name in env}
    exports = "".join(f'export {name}="${other}"; ' for name, other in hidden.items())
    words = shlex.join((python, "-P", "-m", "pilotlight_predictor", "fetch", fetch.uri, folder))
    lines = f"( {exports}exec {words} ) >/dev/null || exit 97\n"
    return lines, {hidden[name]: value for name, value in env.items()}


def _mounts(container: ContainerSpec, folder: Path, home: Home) -> list[str]:
    fetched = [f"{folder}/{number}:{fetch.folder}:ro" for number, fetch in enumerate(container.fetches)]
    own = [f"{folder}:{folder}", f"{home.cache}:{home.cache}", f"{home.models}:{home.models}:ro"]
    if not container.own_health:  # of the snapshots its own, of the cache nothing
        named = re.compile(rf"{re.escape(str(home.models))}/[\w-]+")
        found = named.findall(" ".join((*container.env.values(), *container.command, *container.args)))
        own = [own[0], *(f"{snapshot}:{snapshot}:ro" for snapshot in dict.fromkeys(found))]
    mounts = [f"{mount.source}:{mount.path}{':ro' * mount.read_only}" for mount in container.mounts]
    return [*(own if contract.is_predictor_image(container.image) else ()), *fetched, *mounts]


def _arguments(container: ContainerSpec) -> tuple[str, ...]:
    cpus = -(-(container.cpu_limit or container.cpu_request) // 1)
    return (
        "--no-requeue", "--open-mode=append",  # a job that is lost is replaced by a new one
        *([f"--cpus-per-task={cpus:g}"] if cpus else ()),
        *([f"--mem={-(-container.memory_limit // (1 << 20))}M"] if container.memory_limit else ()),
    )  # fmt: skip


def replica_route(note: Note, queued: Queued, folder: Path, *, here: bool) -> tuple[ReplicaAddress, Forwards]:
    """Return where a running job is reached, and what must be forwarded for that; `here`: its node is this machine."""
    if note.host_port and not (here and note.port):
        own = dict.fromkeys((note.port,) if note.port else (PORTS.http, PORTS.metrics), note.host_port)
        far: Endpoint = note.port or f"{folder}/{PORTS.http}"
        return ReplicaAddress(LOOPBACK, own), () if here else ((note.host_port, far),)
    if note.address == "node" or (here and note.port):
        first = note.port or first_port(queued.id)
        ports = {} if note.port else {port: first + offset for offset, port in enumerate(PORTS)}
        return ReplicaAddress(LOOPBACK if here else queued.host, ports), ()
    if here:
        return ReplicaAddress(f"{SCHEME}{folder}"), ()
    near, ports_there = folder / "near", (note.port,) if note.port else PORTS
    forwards = tuple((f"{near}/{port}", note.port or f"{folder}/{port}") for port in ports_there)
    return ReplicaAddress(f"{SCHEME}{near}"), forwards


def scancel_arguments(stop: str, queued: Queued, note: Note, *, begun: bool) -> list[str]:
    """Return the call that makes a job terminate its server (`terminate`), or end at once (`kill`).

    Slurm loses a signal to a job that runs and has not begun its script, so that is cancelled; it serves nothing.
    """
    if queued.meaning == "pending" or not begun:
        return ["scancel", *(["--state=PENDING"] if queued.state == "PENDING" else ()), queued.id]
    if stop == "kill":
        return ["scancel", "--signal=KILL", "--full", queued.id]
    return ["scancel", "--signal=TERM", *signal_flags(note.container), queued.id]
