"""Containers of this machine's Docker, by its command line: `docker run`, `inspect`, `logs` and `rm`.

The container is called as the job is, and publishes its port 8080 as `host_port`. Where a daemon has no bridge, the
option `network` = host lets it listen on `host_port` itself.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.microservices.model import Entry, Job, Seen
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.docker_words import TAIL, ULIMITS, Gpus, Machine, read_state, run_words
from pilotlight.microservices.platforms.own_predictor import check_free
from pilotlight.microservices.platforms.programs import Finished, Programs, checked, set_secrets

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
        checked(job)
        programs = self._programs.knowing(job)
        _daemon_answers(programs)
        _image_can_be_had(programs, job.image)
        check_free(job)
        run_words(job, self._machine(job), ())

    def start(self, job: Job) -> Entry:
        programs = self._programs.knowing(checked(job))
        words = run_words(job, self._machine(job), set_secrets(job, programs.environ))
        done = programs.ask(words, timeout_s=PULL_S)
        if done.code:
            # A container whose start failed (no such device, port taken) was made all the same.
            programs.ask(["docker", "rm", "--force", "--volumes", job.id])
            raise PlatformError(f"docker run failed: {done.said}", _hint(done))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return Entry("docker", job.network_arch, f"http://localhost:{job.host_port}", started, job.host_port)

    def look(self, job_id: str, entry: Entry) -> Seen:
        done = self._programs.ask(["docker", "inspect", "--type=container", "--format={{json .State}}", job_id])
        if _is_missing(done):
            return Seen("gone", job_id, reason="docker knows no container of this name")
        if done.code:
            raise PlatformError(f"docker inspect failed: {done.said}", DAEMON)
        return read_state(done.out, job_id, self._tail(job_id))

    def stop(self, job_id: str, entry: Entry) -> None:
        stopped = self._programs.ask(["docker", "stop", f"--time={STOP_S}", job_id], timeout_s=STOP_S + 60)
        if stopped.code and not _is_missing(stopped):
            raise PlatformError(f"docker stop failed: {stopped.said}", DAEMON)
        removed = self._programs.ask(["docker", "rm", "--force", "--volumes", job_id])
        if removed.code and not _is_missing(removed):
            raise PlatformError(f"docker rm failed: {removed.said}", f"docker rm --force {job_id}")

    @contextmanager
    def way(self, job_id: str, entry: Entry) -> Iterator[str]:
        yield entry.host_url

    def _tail(self, job_id: str) -> tuple[str, ...]:
        """Both streams as one, in the order in which they were written."""
        logs = self._programs.ask(["sh", "-c", 'exec docker logs "--tail=$0" "$1" 2>&1', str(TAIL), job_id])
        return tuple(logs.out.splitlines()[-TAIL:])

    def _machine(self, job: Job) -> Machine:
        return Machine(gpus_here(self._programs.environ), job.options.get("network", ""))


def gpus_here(environ: Mapping[str, str], root: Path = Path("/")) -> Gpus:
    """Of the daemon's machine. A daemon elsewhere is asked for GPUs in any case: it will say that it has none."""
    if environ.get("DOCKER_HOST", "unix:").split(":")[0] not in ("unix", "npipe"):
        return "requests"
    if (root / "etc/nv_tegra_release").exists():
        return "tegra"
    return "requests" if any((root / "dev" / name).exists() for name in ("nvidiactl", "dxg")) else "none"


def _daemon_answers(programs: Programs) -> None:
    done = programs.ask(["docker", "version", "--format={{json .Server}}"])
    if done.code or not isinstance(json.loads(done.out or "null"), dict):
        raise PlatformError(f"the Docker daemon does not answer: {done.said}", DAEMON)


def _image_can_be_had(programs: Programs, image: str) -> None:
    if programs.ask(["docker", "image", "inspect", "--format={{.Id}}", image]).code == 0:
        return
    asking = Programs({**programs.environ, "DOCKER_CLI_EXPERIMENTAL": "enabled"})  # before Docker 23
    done = asking.ask(["docker", "manifest", "inspect", image])
    if done.code:
        raise PlatformError(
            f"image = {image} is not on this machine and cannot be pulled: {done.said}", f"docker pull {image}"
        )


def _is_missing(done: Finished) -> bool:
    return bool(done.code) and "no such" in done.err.lower()


def _hint(done: Finished) -> str:
    if "could not select device driver" in done.err:
        return "install nvidia-container-toolkit, which hands GPUs to containers"
    if "error setting rlimit" in done.err:
        return "this machine may not raise limits: give --ulimits stack=67108864"
    return DAEMON if "daemon" in done.err and "connect" in done.err else ""
