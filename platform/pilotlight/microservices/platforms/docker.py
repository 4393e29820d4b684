"""Platform docker: containers on this machine by the docker CLI: `run`, `inspect`, `logs` and `rm`.

The container's name is the job id, and its port 8080 is published as `host_port`. With the option `network` = host,
for daemons without a bridge, it listens on `host_port` itself.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.microservices.model import Entry, Job, PlatformStatus
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.docker_words import TAIL, ULIMITS, Gpus, Machine, read_state, run_words
from pilotlight.microservices.platforms.own_predictor import check_free
from pilotlight.microservices.platforms.programs import CompletedCommand, Programs, set_secrets, validate_job

PULL_S: Final = 3600.0  # an image may have tens of GB
STOP_S: Final = 10  # what a container gets between SIGTERM and SIGKILL
INSTALL: Final = "install Docker Engine, or choose another platform"
DAEMON: Final = "start it (systemctl start docker), or point DOCKER_HOST at one; you must be in the group docker"


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
        programs = self._programs.redacting(job)
        _check_daemon(programs)
        _check_image(programs, job.image)
        check_free(job)
        run_words(job, self._machine(job), ())

    def start(self, job: Job) -> Entry:
        programs = self._programs.redacting(validate_job(job))
        words = run_words(job, self._machine(job), set_secrets(job, programs.environ))
        done = programs.run(words, timeout_s=PULL_S)
        if done.code:
            # A container whose start failed (no such device, port taken) still exists.
            programs.run(["docker", "rm", "--force", "--volumes", job.id])
            raise PlatformError(f"docker run failed: {done.summary}", _hint(done))
        started = datetime.now(UTC).isoformat(timespec="seconds")
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


def gpus_here(environ: Mapping[str, str], root: Path = Path("/")) -> Gpus:
    """Return how the daemon's machine provides GPUs. For a remote daemon they are always requested."""
    if environ.get("DOCKER_HOST", "unix:").split(":")[0] not in ("unix", "npipe"):
        return "requests"
    if (root / "etc/nv_tegra_release").exists():
        return "tegra"
    return "requests" if any((root / "dev" / name).exists() for name in ("nvidiactl", "dxg")) else "none"


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
