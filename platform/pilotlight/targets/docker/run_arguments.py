"""Arguments and environment of `docker run` for one replica, and what docker says about its container. Pure.

Our own image listens on unix sockets in a folder of this machine that is mounted into the container, as a process of
the local target does: no port is open to other users of the machine. Other images publish their ports on loopback.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pilotlight import contract
from pilotlight.errors import UsageError
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Mount
from pilotlight.targets.local.supervisor import container_command
from pilotlight.targets.local.supervisor.container_command import PORTS, fetched_folders
from pilotlight.targets.local.supervisor.launcher import Ended, ReplicaAddress
from pilotlight.targets.local.supervisor.process_inspection import ENV_REPLICA
from pilotlight.targets.local.supervisor.replica_record import Launch
from pilotlight.targets.local.supervisor.shim import from_shell
from pilotlight.targets.programs import CompletedCommand
from pilotlight.wire.machine import LOOPBACK
from pilotlight.wire.unix_socket import SCHEME

Gpus = Literal["none", "requests", "tegra"]  # how the machine hands GPUs to containers

DAEMON: Final = "start it (systemctl start docker), or point DOCKER_HOST at one; you must be in the group docker"
LABEL: Final = "dev.pilotlight"
SOCKETS: Final = "/run/pilotlight"  # folder of a replica's sockets in its container
# Requirements of NVIDIA's images: unlimited pinned memory, large stacks.
ULIMITS: Final = "memlock=-1,stack=67108864"
SSH_FAILED: Final = 255
CLIENT_ENDED: Final = "its docker client exited, and the container was removed"
PULLS: Final = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}  # by imagePullPolicy
QUOTE: Final = '"'
_DEFAULT_NAMES: Final = ("kserve-container", "ome-container")  # of the containers of many services
# Settings of a process of this machine that have no meaning in a container.
_HIDDEN: Final = (ENV_HOME, ENV_REPLICA, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
# Variables that change the docker client itself: those of a container go by value, and no secret has such a name.
_CLIENT: Final = re.compile(r"PATH|HOME|TMPDIR|SSH_AUTH_SOCK|PILOTLIGHT_(HOME|REPLICA)|GO[A-Z]+|(LD|XDG|DOCKER)_\w+")


class Daemon(NamedTuple):
    """Properties of the daemon that change the arguments."""

    gpus: Gpus = "none"
    cpus: int = 0  # docker refuses a limit above them; 0: unknown
    mounts_sockets: bool = True  # false: Docker Desktop, whose containers are in a virtual machine
    user: str = ""  # UID:GID by which our image reads the files of this user


def read_daemon(info: Mapping[str, Any], gpus: Gpus, user: str) -> Daemon:
    """Return the properties from `docker info --format '{{json .}}'`."""
    rootless = any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
    desktop = "Docker Desktop" in str(info.get("OperatingSystem"))
    return Daemon(gpus, int(info.get("NCPU") or 0), not desktop, "0:0" if rootless else user)


def check(container: ContainerSpec, daemon_host: str) -> None:
    """Raise UsageError for what containers cannot do here; `daemon_host` is DOCKER_HOST of the control process."""
    check_host(container.options, daemon_host)
    check_secrets(container)
    for limit in filter(None, container.options.get("ulimits", "").split(",")):
        if not re.fullmatch(r"[a-z]+=-?\d+(:-?\d+)?", limit):
            raise UsageError(f"ulimits = {limit}, must be NAME=SOFT[:HARD], such as memlock=-1")
    own = contract.is_predictor_image(container.image)
    if container.options.get("network") == "host" and not own and container.host_port != container.port:
        problem = f"network = host, but {container.image} listens on port {container.port} of the machine itself"
        raise UsageError(f"{problem}; remove network, so that its port is published")


def check_secrets(container: ContainerSpec, program: str = "docker", variables: re.Pattern[str] = _CLIENT) -> None:
    """Raise UsageError for a secret with the name of one of the program's own variables."""
    secrets = [*container.secret_env, *(each for fetch in container.fetches for each in fetch.secret_env)]
    if taken := [name for name, _, _ in secrets if variables.fullmatch(name)]:
        problem = f"env {taken[0]}: {program} reads this variable, so the secret could leak"
        raise UsageError(problem, "rename the variable")


def check_host(options: Mapping[str, str], daemon_host: str) -> None:
    """Raise UsageError unless DOCKER_HOST of the control process is this machine's, and the one that is wanted."""
    host = options.get("docker_host", "")
    if host and host != daemon_host:
        problem = f"docker_host = {host}, but the control process has DOCKER_HOST = {daemon_host or 'none'}"
        raise UsageError(problem, "platformctl down, then platformctl up with DOCKER_HOST set")
    if daemon_host.partition(":")[0] not in ("", "unix", "npipe"):
        raise UsageError(f"DOCKER_HOST = {daemon_host}: its containers cannot be reached; use a local daemon")


def by_sockets(container: ContainerSpec, daemon: Daemon) -> bool:
    """Whether the replica is reached by sockets of a mounted folder."""
    return daemon.mounts_sockets and contract.is_predictor_image(container.image) and not container.host_port


def container_name(launch: Launch) -> str:
    """Return the replica's id; of a container with a port of its own (hostPort) the name that it has in the pod."""
    container = launch.revision.container
    return container.name if container.host_port and container.name not in _DEFAULT_NAMES else launch.replica


def variables(launch: Launch, daemon: Daemon, home: Home, gateway_url: str) -> dict[str, str]:
    """Return the environment of the container, which inherits nothing."""
    container = launch.revision.container
    if not contract.is_predictor_image(container.image):
        return {**container.env, **launch.secret_values(container.secret_env), **launch.extra_env}
    env = container_command.variables(launch, (), home, gateway_url, {})
    hidden = _HIDDEN if _shares_cache(container, daemon) else (*_HIDDEN, contract.ENV_CACHE_DIR)
    on_host = container.options.get("network") == "host"
    published = (container.host_ip or LOOPBACK) if on_host else "0.0.0.0"  # noqa: S104 - of the container
    host = f"{SCHEME}{SOCKETS}" if by_sockets(container, daemon) else published
    return {
        **{name: value for name, value in env.items() if name not in hidden or name in container.env},
        **dict.fromkeys(("INFERENCE_HOST", "INFERENCE_GRPC_ADDRESS", "INFERENCE_METRICS_ADDRESS"), host),
        "INFERENCE_HTTP_PORT": str(container.host_port if on_host and container.host_port else PORTS.http),
    }


def _shares_cache(container: ContainerSpec, daemon: Daemon) -> bool:
    """Whether it uses the cache of the home; not a microservice, whose model may be of another org."""
    return daemon.mounts_sockets and container.own_health


def client_command(
    launch: Launch, daemon: Daemon, home: Home, gateway_url: str = "", models: Iterable[str] = (),
    gpus: Sequence[int | str] = (), python: str = "python",
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Return the command of the client, and the variables that it needs beside its own.

    `models` are files and folders of this machine that the container reads.
    """
    container = launch.revision.container
    env, words = variables(launch, daemon, home, gateway_url), _run(launch, daemon, home, models, gpus)
    words += [f"--env={name}={value}" if changes_client(name) else f"--env={name}" for name, value in env.items()]
    words += image_arguments(container)
    values = {name: value for name, value in env.items() if not changes_client(name)}
    prefix, fetching = container_command.fetch_command(launch, home, python)
    return [*prefix, *words], {**fetching, **values}


def _run(launch: Launch, daemon: Daemon, home: Home, models: Iterable[str], gpus: Sequence[int | str]) -> list[str]:
    revision, container = launch.revision, launch.revision.container
    pull = PULLS.get(container.pull_policy)
    labels = {"home": home.root, "namespace": revision.namespace, "service": revision.service}
    return [
        "docker", "run", f"--name={container_name(launch)}", f"--cidfile={id_file(home, launch.replica)}",
        *(f"--label={LABEL}.{name}={value}" for name, value in {**labels, "replica": launch.replica}.items()),
        "--log-driver=none", *([f"--pull={pull}"] if pull else []),
        *_network(container, daemon), *privileges(container, daemon),
        *limits(container, daemon, gpus), *gpu_arguments(",".join(map(str, gpus)), 0, daemon.gpus),
        *map(bind_mount, (*container.mounts, *_home_mounts(launch, daemon, home, models))),
    ]  # fmt: skip


def id_file(home: Home, replica: str) -> Path:
    """Return the file that docker writes the container's id to."""
    return home.run / f"{replica}.container"


def changes_client(name: str) -> bool:
    """Whether a variable would change the docker client, and so cannot be passed by its environment."""
    return _CLIENT.fullmatch(name) is not None


def _home_mounts(launch: Launch, daemon: Daemon, home: Home, models: Iterable[str]) -> list[Mount]:
    container = launch.revision.container
    # Of a snapshot the folder: an example beside the model is part of it.
    read = {os.path.dirname(path) if home.models in Path(path).parents else path for path in models}
    written = [home.cache] if _shares_cache(container, daemon) else []
    written += [home.sockets, home.run / "endpoints"] if launch.revision.role == "router" else []
    sockets = [Mount(str(home.sockets / launch.replica), SOCKETS)] if by_sockets(container, daemon) else []
    return [
        *(Mount(path, path, read_only=True) for path in sorted(read)),
        *(Mount(source, folder, read_only=True) for folder, source in fetched_folders(launch, home).items()),
        *(Mount(str(folder), str(folder)) for folder in written), *sockets,
    ]  # fmt: skip


def bind_mount(mount: Mount) -> str:
    """Return the argument, as CSV. Unlike --volume it fails where the source does not exist."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.path}", *["readonly"] * mount.read_only]
    cells = (f'"{field.replace(QUOTE, 2 * QUOTE)}"' if {",", QUOTE} & {*field} else field for field in fields)
    return f"--mount={','.join(cells)}"


def _network(container: ContainerSpec, daemon: Daemon) -> list[str]:
    network = container.options.get("network", "")
    named = [f"--network={network}"] if network else []
    if by_sockets(container, daemon) or network == "host":
        return named
    ip, ports = container.host_ip or LOOPBACK, container_command.ports(container)
    if container.host_port:  # its only address; gRPC and metrics of a microservice are off
        return [*named, f"--publish={ip}:{container.host_port}:{ports[0]}"]
    return [*named, *(f"--publish={ip}::{port}" for port in ports if port)]


def privileges(container: ContainerSpec, daemon: Daemon) -> list[str]:
    """Our image needs no capability, and this user's id for the files that are mounted."""
    if not contract.is_predictor_image(container.image):
        return []
    user = [f"--user={daemon.user}"] if daemon.user else []
    return [*user, "--cap-drop=ALL", "--security-opt=no-new-privileges"]


def limits(container: ContainerSpec, daemon: Daemon, gpus: Sequence[int | str]) -> list[str]:
    cpus = min(container.cpu_limit or 0.0, daemon.cpus or float("inf"))
    ulimits = container.options.get("ulimits", "") or (ULIMITS if gpus else "")
    return [
        "--shm-size=1g",
        *([f"--memory={container.memory_limit}"] if container.memory_limit else []),
        *([f"--cpus={cpus:g}"] if cpus else []),
        *(f"--ulimit={limit}" for limit in ulimits.split(",") if limit),
    ]


def gpu_arguments(devices: str, count: int, gpus: Gpus) -> list[str]:
    """Return the GPU arguments: `devices`, else the first `count`; without any the image gets none, even by default."""
    if gpus == "none":
        return []
    if not devices and not count:
        return ["--env=NVIDIA_VISIBLE_DEVICES=void"]
    if gpus == "tegra":
        visible = f"NVIDIA_VISIBLE_DEVICES={devices or ','.join(map(str, range(count)))}"
        return ["--runtime=nvidia", "--env=NVIDIA_DRIVER_CAPABILITIES=all", f"--env={visible}"]
    # The inner quotes are docker's: a comma separates fields of one request.
    return ["--gpus", f'"device={devices}"' if devices else str(count)]


def gpus_here(root: Path = Path("/")) -> Gpus:
    """Return how this machine provides GPUs to containers."""
    if (root / "etc/nv_tegra_release").exists():
        return "tegra"
    return "requests" if any((root / "dev" / name).exists() for name in ("nvidiactl", "dxg")) else "none"


def image_arguments(container: ContainerSpec) -> list[str]:
    """Return image and command: as in a pod, `command` replaces the entry point and `args` the image's command."""
    own = contract.is_predictor_image(container.image)
    args = container_command.without_addresses(container.args) if own else container.args
    entry = [f"--entrypoint={container.command[0]}"] if container.command else []
    return [*entry, container.image, *container.command[1:], *args]


def address(described: Mapping[str, Any], sockets: ReplicaAddress) -> ReplicaAddress:
    """Return the address of a running container from `docker inspect`; `sockets` is that of its mounted folder."""
    if any(mount.get("Destination") == SOCKETS for mount in described.get("Mounts") or ()):
        return sockets
    if described["HostConfig"]["NetworkMode"] == "host":
        env = dict(each.partition("=")[::2] for each in described["Config"]["Env"])
        return ReplicaAddress(LOOPBACK, {PORTS.http: int(env.get("INFERENCE_HTTP_PORT", PORTS.http))})
    published = {name: bound[0] for name, bound in (described["NetworkSettings"]["Ports"] or {}).items() if bound}
    hosts = {bound["HostIp"] for bound in published.values()} - {"0.0.0.0", "::"}  # noqa: S104 - all of them
    ports = {int(name.partition("/")[0]): int(bound["HostPort"]) for name, bound in published.items()}
    return ReplicaAddress(min(hosts, default=LOOPBACK), ports)


def end_of(client: Ended, state: Mapping[str, Any] | None, log: Sequence[str]) -> Ended:
    """Return the end of a replica by that of its client, its container's last state and the last lines of its log.

    An empty state: there was no container; None: the daemon did not answer.
    """
    if state and not state.get("Running"):
        return Ended(from_shell(int(state["ExitCode"])), exit_reason(state) or client.reason, client.lost)
    # The client names an image that it must pull; the daemon's error need not.
    pulled = [line.split("'")[1] for line in log if line.startswith("Unable to find image '")]
    image = f"image {pulled[-1]}: " if pulled else ""
    said = [image + line.partition("docker: ")[2] for line in log if line.startswith("docker: ")]
    reason = CLIENT_ENDED if state else said[-1] if said else ""
    return client._replace(reason=client.reason or ("the Docker daemon does not answer" if state is None else reason))


def exit_reason(state: Mapping[str, Any]) -> str:
    """Return why a container ended, from `.State` of `docker inspect`; empty: its exit code says it all."""
    if state.get("OOMKilled"):
        return "the container was killed because it exceeded its memory limit"
    return f"the container could not run: {state['Error']}" if state.get("Error") else ""


def is_missing(done: CompletedCommand) -> bool:
    """Whether docker, maybe by ssh, says that there is no such container."""
    return done.code not in (0, SSH_FAILED) and "no such" in done.err.lower()
