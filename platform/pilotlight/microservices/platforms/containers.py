"""Containers by the docker CLI: arguments and parsers of brev.py, and those that others started on this machine.

The container's name is the job id, and its port 8080 is published as `host_port`. With the option `network` = host,
for daemons without a bridge, it listens on `host_port` itself.
"""

import json
from collections.abc import Mapping
from shutil import which
from typing import Any, Final, NamedTuple

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.platforms.commands import split_list
from pilotlight.microservices.platforms.host_ports import LOOPBACK, is_own, listening
from pilotlight.microservices.registry.records import Job, PlatformStatus, State
from pilotlight.targets.docker.run_arguments import DAEMON, ULIMITS, Gpus, exit_reason, gpu_arguments
from pilotlight.targets.programs import CompletedCommand, Programs

STOP_S: Final = 10  # what a container gets between SIGTERM and SIGKILL
TAIL: Final = 50
LABEL: Final = "dev.pilotlight.microservice"
_STATES: Final[Mapping[str, State]] = {
    "created": "pending", "restarting": "pending", "running": "running", "paused": "running", "removing": "stopped",
}  # fmt: skip


class Machine(NamedTuple):
    """Properties of the machine that change the arguments."""

    gpus: Gpus = "none"
    network: str = ""  # "": the daemon's own bridge


def run_arguments(job: Job, machine: Machine, secrets: tuple[str, ...]) -> list[str]:
    """Return the arguments. They have names of `secrets` only: docker reads values from its environment."""
    env = {**job.env, **_moved(job, machine)}
    return [
        "docker", "run", "--detach", "--name", job.id, "--label", f"{LABEL}={job.network_arch}",
        *_network(job, machine), *_limits(job), *gpu_arguments(job.options.get("gpus", ""), job.num_gpus, machine.gpus),
        *(word for mount in split_list(job.options.get("mounts", "")) for word in ("--volume", mount)),
        *(word for name, value in env.items() for word in ("--env", f"{name}={value}")),
        *(word for name in secrets for word in ("--env", name)),
        *_command(job),
    ]  # fmt: skip


def _limits(job: Job) -> list[str]:
    limits = split_list(job.options.get("ulimits", "") or ULIMITS)
    return ["--shm-size=1g", *(word for limit in limits for word in ("--ulimit", limit))]


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
        running = _STATES[word] == "running"
        return PlatformStatus(_STATES[word], name, "", "" if running else f"the container is {word}", tail)
    code = int(state.get("ExitCode", 0))
    if code == 0 and not state.get("Error"):
        return PlatformStatus("stopped", name, "", "the container ended by itself with exit code 0", tail)
    return PlatformStatus("failed", name, "", _why(state, code), tail)


def _why(state: Mapping[str, Any], code: int) -> str:
    if reason := exit_reason(state):
        return reason
    signal = f", by signal {code - 128}" if 128 < code < 160 else ""
    return f"the container ended with exit code {code}{signal}"


class ForeignContainers:
    """Containers of this machine that bear a job's id and belong to no service: scripts and earlier releases."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._programs = Programs(environ)

    def status(self, job_id: str) -> PlatformStatus | None:
        """Return the status of a container; None: docker has none of this name, or is not on this machine."""
        if which("docker", path=self._programs.environ.get("PATH", "")) is None:
            return None
        done = self._programs.run(["docker", "inspect", "--type=container", "--format={{json .State}}", job_id])
        if _is_missing(done):
            return None
        if done.code:
            raise PlatformError(f"docker inspect failed: {done.summary}", DAEMON)
        logs = self._programs.run(["sh", "-c", 'exec docker logs "--tail=$0" "$1" 2>&1', str(TAIL), job_id])
        return read_state(done.out, job_id, tuple(logs.out.splitlines()[-TAIL:]))

    def stop(self, job_id: str) -> None:
        if which("docker", path=self._programs.environ.get("PATH", "")) is None:
            return
        stopped = self._programs.run(["docker", "stop", f"--time={STOP_S}", job_id], timeout_s=STOP_S + 60)
        if stopped.code and not _is_missing(stopped):
            raise PlatformError(f"docker stop failed: {stopped.summary}", DAEMON)
        removed = self._programs.run(["docker", "rm", "--force", "--volumes", job_id])
        if removed.code and not _is_missing(removed):
            raise PlatformError(f"docker rm failed: {removed.summary}", f"docker rm --force {job_id}")


def _is_missing(done: CompletedCommand) -> bool:
    return bool(done.code) and "no such" in done.err.lower()
