"""Platform docker: containers on this machine by the docker CLI; arguments and parsers are also used by brev.py.

The container's name is the job id, and its port 8080 is published as `host_port`. With the option `network` = host,
for daemons without a bridge, it listens on `host_port` itself.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.commands import set_secrets, split_list, validate_job
from pilotlight.microservices.platforms.host_ports import LOOPBACK, check_free, is_own, listening
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus, State
from pilotlight.targets.docker.run_arguments import DAEMON, ULIMITS, Gpus, exit_reason, gpu_arguments, gpus_here
from pilotlight.targets.programs import CompletedCommand, Programs

PULL_S: Final = 3600.0  # an image may have tens of GB
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


def make(environ: Mapping[str, str]) -> "Docker":
    return Docker(environ)


class Docker:
    name = "docker"
    own_ports = True
    options = (
        Option("mounts", "folders of its machine that the container sees: /models:/models:ro, comma separated"),
        Option("network", "network of the container; host where the daemon has no bridge"),
        Option("ulimits", "limits of the container, where its machine may not set the usual ones", default=ULIMITS),
        Option("gpus", "devices by number or UUID, comma separated; otherwise the first num_gpus"),
    )

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._programs = Programs(environ)

    def preflight(self, job: Job) -> None:
        validate_job(job)
        programs = self._programs.redacting(job.secrets)
        _check_daemon(programs)
        _check_image(programs, job.image)
        check_free(job)
        run_arguments(job, self._machine(job), ())

    def start(self, job: Job) -> Entry:
        programs = self._programs.redacting(validate_job(job).secrets)
        words = run_arguments(job, self._machine(job), set_secrets(job, programs.environ))
        done = programs.run(words, timeout_s=PULL_S)
        if done.code:
            # A container whose start failed (no such device, port taken) still exists.
            programs.run(["docker", "rm", "--force", "--volumes", job.id])
            raise PlatformError(f"docker run failed: {done.summary}", _hint(done))
        started = utc_now("seconds", "+00:00")
        return Entry("docker", job.network_arch, f"http://localhost:{job.host_port}", started, job.host_port)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        done = self._programs.run(["docker", "inspect", "--type=container", "--format={{json .State}}", job_id])
        if _is_missing(done):
            return PlatformStatus("gone", job_id, reason="docker knows no container of this name")
        if done.code:
            raise PlatformError(f"docker inspect failed: {done.summary}", DAEMON)
        return read_state(done.out, job_id, self._tail(job_id))

    def stop(self, job_id: str, entry: Entry) -> None:
        stopped = self._programs.run(["docker", "stop", f"--time={STOP_S}", job_id], timeout_s=STOP_S + 60)
        if stopped.code and not _is_missing(stopped):
            raise PlatformError(f"docker stop failed: {stopped.summary}", DAEMON)
        removed = self._programs.run(["docker", "rm", "--force", "--volumes", job_id])
        if removed.code and not _is_missing(removed):
            raise PlatformError(f"docker rm failed: {removed.summary}", f"docker rm --force {job_id}")

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        yield entry.host_url

    def _tail(self, job_id: str) -> tuple[str, ...]:
        """Return the last lines of stdout and stderr, in order."""
        logs = self._programs.run(["sh", "-c", 'exec docker logs "--tail=$0" "$1" 2>&1', str(TAIL), job_id])
        return tuple(logs.out.splitlines()[-TAIL:])

    def _machine(self, job: Job) -> Machine:
        return Machine(gpus_here(self._programs.environ), job.options.get("network", ""))


def _check_daemon(programs: Programs) -> None:
    done = programs.run(["docker", "version", "--format={{json .Server}}"])
    if done.code or not isinstance(json.loads(done.out or "null"), dict):
        raise PlatformError(f"the Docker daemon does not answer: {done.summary}", DAEMON)


def _check_image(programs: Programs, image: str) -> None:
    if programs.run(["docker", "image", "inspect", "--format={{.Id}}", image]).code == 0:
        return
    asking = Programs({**programs.environ, "DOCKER_CLI_EXPERIMENTAL": "enabled"})  # before Docker 23
    done = asking.run(["docker", "manifest", "inspect", image])
    if done.code:
        raise PlatformError(
            f"image = {image} is not on this machine and cannot be pulled: {done.summary}", f"docker pull {image}"
        )


def _is_missing(done: CompletedCommand) -> bool:
    return bool(done.code) and "no such" in done.err.lower()


def _hint(done: CompletedCommand) -> str:
    if "could not select device driver" in done.err:
        return "install nvidia-container-toolkit, which hands GPUs to containers"
    if "error setting rlimit" in done.err:
        return "this machine may not raise limits: give --ulimits stack=67108864"
    return DAEMON if "daemon" in done.err and "connect" in done.err else ""
