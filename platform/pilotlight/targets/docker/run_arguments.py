"""Arguments and environment of `docker run` for one replica, and how the daemon changes them. Pure.

Our own image listens on unix sockets in a folder of this machine that is mounted into the container, as a process of
the local target does: no port is open to other users of the machine. Other images publish their ports on loopback.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pilotlight import contract
from pilotlight.k8s.model_pins import encode, is_local
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Mount
from pilotlight.targets.local.supervisor.container_command import PORTS, without_addresses
from pilotlight.targets.local.supervisor.launcher import Ended, ReplicaAddress
from pilotlight.targets.local.supervisor.replica_record import Launch
from pilotlight.targets.local.supervisor.shim import from_shell
from pilotlight.wire.machine import LOOPBACK
from pilotlight.wire.unix_socket import SCHEME

Gpus = Literal["none", "requests", "tegra"]  # how the machine hands GPUs to containers

LABEL: Final = "dev.pilotlight"
SOCKETS: Final = "/run/pilotlight"  # folder of a replica's sockets in its container
# Requirements of NVIDIA's images: unlimited pinned memory, large stacks.
ULIMITS: Final = "memlock=-1,stack=67108864"
CLIENT_ENDED: Final = "its docker client ended, and the container was removed"
# Variables that change the docker client itself: those of a container go by value. No secret has such a name.
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


def by_sockets(container: ContainerSpec, daemon: Daemon) -> bool:
    """Whether the replica is reached by sockets of a mounted folder."""
    return daemon.mounts_sockets and contract.is_predictor_image(container.image) and not container.host_port


def container_name(launch: Launch) -> str:
    """Return the replica's id; of a container with a port of its own (hostPort) its name in the pod."""
    container = launch.revision.container
    return container.name if container.host_port else launch.replica


def variables(launch: Launch, daemon: Daemon, cache: str) -> dict[str, str]:
    """Return the environment of the container; it inherits nothing. `cache` is a mounted folder, empty: none."""
    container, revision = launch.revision.container, launch.revision
    if not contract.is_predictor_image(container.image):
        return {**container.env, **launch.extra_env}
    pins = {uri: pin for uri, pin in container.pins.items() if not is_local(uri)}
    on_host = container.options.get("network") == "host"
    published = (container.host_ip or LOOPBACK) if on_host else "0.0.0.0"  # noqa: S104 - of the container
    host = f"{SCHEME}{SOCKETS}" if by_sockets(container, daemon) else published
    http = container.host_port if on_host and container.host_port else PORTS.http
    return {
        **container.env,
        **({contract.ENV_MODEL_PINS: encode(pins)} if pins else {}),
        **({contract.ENV_CACHE_DIR: cache} if cache else {}),
        **dict.fromkeys(("INFERENCE_HOST", "INFERENCE_GRPC_ADDRESS", "INFERENCE_METRICS_ADDRESS"), host),
        "INFERENCE_HTTP_PORT": str(http),
        "INFERENCE_GRPC_PORT": str(PORTS.grpc),
        "INFERENCE_METRICS_PORT": str(PORTS.metrics),
        "INFERENCE_DRAIN_DELAY": "0",
        "INFERENCE_LOG_FORMAT": "json",
        "K_REVISION": revision.name,
        contract.ENV_REVISION: revision.name,
        **launch.extra_env,
    }


def run_arguments(
    launch: Launch,
    daemon: Daemon,
    env: Mapping[str, str],
    mounts: Sequence[Mount] = (),
    gpus: Sequence[int | str] = (),
    home: str = "",
) -> list[str]:
    """Return the command; the client's environment must hold the values of `env`. `mounts` add to the container's."""
    revision, container = launch.revision, launch.revision.container
    labels = {"home": home, "namespace": revision.namespace, "service": revision.service, "replica": launch.replica}
    return [
        "docker", "run", "--name", container_name(launch), "--log-driver=none",
        *(f"--label={LABEL}.{name}={value}" for name, value in labels.items()),
        *_network(container, daemon), *_privileges(container, daemon), *_limits(container, daemon, gpus),
        *gpu_arguments(",".join(map(str, gpus)), 0, daemon.gpus),
        *(f"--volume={mount.source}:{mount.path}{':ro' * mount.read_only}" for mount in (*container.mounts, *mounts)),
        *(f"--volume={mount}" for mount in split_list(container.options.get("mounts", ""))),
        *(word for name, value in env.items() for word in ("--env", f"{name}={value}" if is_clients(name) else name)),
        *_command(container),
    ]  # fmt: skip


def is_clients(name: str) -> bool:
    """Whether a variable would change the docker client, and so cannot be passed by its environment."""
    return _CLIENT.fullmatch(name) is not None


def split_list(value: str) -> list[str]:
    """Split an option with several values."""
    return [part for part in value.split(",") if part]


def _network(container: ContainerSpec, daemon: Daemon) -> list[str]:
    network = container.options.get("network", "")
    named = [f"--network={network}"] if network else []
    if by_sockets(container, daemon) or network == "host":
        return named
    own = PORTS if contract.is_predictor_image(container.image) else (container.port,)
    ip = container.host_ip or LOOPBACK
    others = [f"{ip}::{port}" for port in own if port != container.port]
    served = f"{ip}:{container.host_port or ''}:{container.port}"
    return [*named, *(f"--publish={port}" for port in (served, *others))]


def _privileges(container: ContainerSpec, daemon: Daemon) -> list[str]:
    """Our image needs no capability, and this user's id for the files that are mounted."""
    if not contract.is_predictor_image(container.image):
        return []
    user = [f"--user={daemon.user}"] if daemon.user else []
    return [*user, "--cap-drop=ALL", "--security-opt=no-new-privileges"]


def _limits(container: ContainerSpec, daemon: Daemon, gpus: Sequence[int | str]) -> list[str]:
    cpus = min(container.cpu_limit or 0.0, daemon.cpus or float("inf"))
    ulimits = container.options.get("ulimits", "") or (ULIMITS if gpus else "")
    return [
        "--shm-size=1g",
        *([f"--memory={container.memory_limit}"] if container.memory_limit else []),
        *([f"--cpus={cpus:g}"] if cpus else []),
        *(f"--ulimit={limit}" for limit in split_list(ulimits)),
    ]


def gpu_arguments(devices: str, count: int, gpus: Gpus) -> list[str]:
    """Return the GPU arguments: `devices`, else the first `count`; without any the image gets none, even by default."""
    if gpus == "none":
        return []
    if not devices and not count:
        return ["--env", "NVIDIA_VISIBLE_DEVICES=void"]
    if gpus == "tegra":
        visible = f"NVIDIA_VISIBLE_DEVICES={devices or ','.join(map(str, range(count)))}"
        return ["--runtime=nvidia", "--env", "NVIDIA_DRIVER_CAPABILITIES=all", "--env", visible]
    # The inner quotes are docker's: a comma separates fields of one request.
    return ["--gpus", f'"device={devices}"' if devices else str(count)]


def gpus_here(environ: Mapping[str, str], root: Path = Path("/")) -> Gpus:
    """Return how the daemon's machine provides GPUs. For a remote daemon they are always requested."""
    if environ.get("DOCKER_HOST", "unix:").split(":")[0] not in ("unix", "npipe"):
        return "requests"
    if (root / "etc/nv_tegra_release").exists():
        return "tegra"
    return "requests" if any((root / "dev" / name).exists() for name in ("nvidiactl", "dxg")) else "none"


def _command(container: ContainerSpec) -> list[str]:
    """Return image and command: as in a pod, `command` replaces the entry point and `args` the image's command."""
    own = contract.is_predictor_image(container.image)
    args = without_addresses(container.args) if own else container.args
    entry = [f"--entrypoint={container.command[0]}"] if container.command else []
    return [*entry, container.image, *container.command[1:], *args]


def address(described: Mapping[str, Any], sockets: str) -> ReplicaAddress:
    """Return the address of a running container from `docker inspect`; `sockets` is the host of its sockets."""
    if any(mount.get("Destination") == SOCKETS for mount in described.get("Mounts") or ()):
        return ReplicaAddress(sockets)
    if described["HostConfig"]["NetworkMode"] == "host":
        env = dict(each.partition("=")[::2] for each in described["Config"]["Env"])
        return ReplicaAddress(LOOPBACK, {PORTS.http: int(env.get("INFERENCE_HTTP_PORT", PORTS.http))})
    published = {name: bound[0] for name, bound in described["NetworkSettings"]["Ports"].items() if bound}
    hosts = {bound["HostIp"] for bound in published.values()} - {"0.0.0.0", "::"}  # noqa: S104 - all of them
    ports = {int(name.partition("/")[0]): int(bound["HostPort"]) for name, bound in published.items()}
    return ReplicaAddress(min(hosts, default=LOOPBACK), ports)


def end_of(client: Ended, state: Mapping[str, Any] | None, log: Sequence[str]) -> Ended:
    """Return the end of a replica by that of its client, its container's last state and the last lines of its log.

    An empty state: there was no container; None: the daemon did not answer.
    """
    if state is None:
        return client._replace(reason=client.reason or "the Docker daemon does not answer")
    if state.get("Running"):
        return client._replace(reason=client.reason or CLIENT_ENDED)
    if state:
        return Ended(from_shell(int(state["ExitCode"])), exit_reason(state) or client.reason, client.lost)
    said = [line.partition("docker: ")[2] for line in log if line.startswith("docker: ")]
    return client._replace(reason=client.reason or (said[-1] if said else ""))


def exit_reason(state: Mapping[str, Any]) -> str:
    """Return why a container ended, from `.State` of `docker inspect`; empty: its exit code says it all."""
    if state.get("OOMKilled"):
        return "the container was killed because it used more memory than it may"
    return f"the container could not run: {state['Error']}" if state.get("Error") else ""
