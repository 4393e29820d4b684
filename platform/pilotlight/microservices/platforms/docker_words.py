"""Arguments of `docker run` for a job, and status of a container. Pure; used by docker.py and brev.py."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pilotlight.errors import UsageError
from pilotlight.microservices.model import Job, PlatformStatus, State
from pilotlight.microservices.platforms.own_predictor import LOOPBACK, is_own, listening
from pilotlight.microservices.platforms.programs import split_list

Gpus = Literal["none", "requests", "tegra"]  # how the machine hands GPUs to containers

TAIL: Final = 50
LABEL: Final = "dev.pilotlight.microservice"
# Requirements of NVIDIA's images: shared memory for workers, unlimited pinned memory, large stacks.
ULIMITS: Final = "memlock=-1,stack=67108864"
_STATES: Final[Mapping[str, State]] = {
    "created": "pending", "restarting": "pending", "running": "running", "paused": "running", "removing": "stopped",
}  # fmt: skip


class Machine(NamedTuple):
    """Properties of the machine that change the arguments."""

    gpus: Gpus = "none"
    network: str = ""  # "": the daemon's own bridge


def run_words(job: Job, machine: Machine, secrets: tuple[str, ...]) -> list[str]:
    """Return the arguments. They have names of `secrets` only: docker reads values from its environment."""
    env = {**job.env, **_moved(job, machine)}
    return [
        "docker", "run", "--detach", "--name", job.id, "--label", f"{LABEL}={job.network_arch}",
        *_network(job, machine), *_limits(job), *gpu_words(job, machine.gpus),
        *(word for mount in split_list(job.options.get("mounts", "")) for word in ("--volume", mount)),
        *(word for name, value in env.items() for word in ("--env", f"{name}={value}")),
        *(word for name in secrets for word in ("--env", name)),
        *_command(job),
    ]  # fmt: skip


def _limits(job: Job) -> list[str]:
    limits = split_list(job.options.get("ulimits", "") or ULIMITS)
    return ["--shm-size=1g", *(word for limit in limits for word in ("--ulimit", limit))]


def gpu_words(job: Job, gpus: Gpus) -> list[str]:
    """Return the GPU arguments: devices of `options.gpus`, else the first `num_gpus`."""
    devices = job.options.get("gpus", "")
    if gpus == "none":
        return []
    if gpus == "tegra":
        seen = devices or ",".join(map(str, range(job.num_gpus)))
        return [
            "--runtime=nvidia",
            "--env",
            "NVIDIA_DRIVER_CAPABILITIES=all",
            "--env",
            f"NVIDIA_VISIBLE_DEVICES={seen}",
        ]
    # The inner quotes are docker's: a comma separates fields of one request.
    return ["--gpus", f'"device={devices}"' if devices else str(job.num_gpus)]


def _moved(job: Job, machine: Machine) -> Mapping[str, str]:
    if machine.network != "host":
        return {}
    if is_own(job):
        return listening(job)
    if job.host_port != job.port:
        raise UsageError(
            f"network = host, but {job.image} listens on {job.port} only and {job.host_port} was chosen for it: "
            f"leave network out, or free port {job.port}"
        )
    return {}


def _network(job: Job, machine: Machine) -> list[str]:
    if machine.network == "host":
        return ["--network", "host"]
    named = ["--network", machine.network] if machine.network else []
    only = f"{LOOPBACK}:" if job.closed else ""
    return [*named, "--publish", f"{only}{job.host_port}:{job.port}"]


def _command(job: Job) -> list[str]:
    """Return image and command. The predictor image's entry point is replaced; those of other images are needed."""
    if is_own(job):
        return ["--entrypoint", "/bin/sh", job.image, "-c", job.command]
    return [job.image, "/bin/sh", "-c", job.command]


def read_state(text: str, name: str, tail: tuple[str, ...] = ()) -> PlatformStatus:
    """Parse `docker inspect --format '{{json .State}}'`."""
    state: dict[str, Any] = json.loads(text)
    word = str(state.get("Status", ""))
    if word in _STATES and not state.get("Error"):
        return PlatformStatus(_STATES[word], name, word, "", tail)
    code = int(state.get("ExitCode", 0))
    if code == 0 and not state.get("Error"):
        return PlatformStatus("stopped", name, word, "the container ended by itself with exit code 0", tail)
    return PlatformStatus("failed", name, word, _why(state, code), tail)


def _why(state: Mapping[str, Any], code: int) -> str:
    if state.get("OOMKilled"):
        return "the container was killed because it used more memory than it may"
    if state.get("Error"):
        return f"the container could not run: {state['Error']}"
    signal = f", by signal {code - 128}" if 128 < code < 160 else ""
    return f"the container ended with exit code {code}{signal}"
