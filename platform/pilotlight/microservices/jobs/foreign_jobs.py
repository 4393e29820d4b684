"""Containers and Slurm jobs that bear a job's id and belong to no service: those of scripts and earlier releases."""

import json
import shutil
from collections.abc import Mapping
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.microservices.registry.records import Entry, PlatformStatus, State
from pilotlight.targets.docker.run_arguments import DAEMON, exit_reason, is_missing
from pilotlight.targets.programs import Programs

STOP_S: Final = 10  # what a container gets between SIGTERM and SIGKILL
TAIL: Final = 50
_STATES: Final[Mapping[str, State]] = {
    "created": "pending", "restarting": "pending", "running": "running", "paused": "running", "removing": "stopped",
}  # fmt: skip


def read_state(text: str, name: str, tail: tuple[str, ...] = ()) -> PlatformStatus:
    """Parse `docker inspect --format '{{json .State}}'`."""
    state: dict[str, Any] = json.loads(text)
    word = str(state.get("Status", ""))
    if word in _STATES and not state.get("Error"):
        running = _STATES[word] == "running"
        return PlatformStatus(_STATES[word], name, "", "" if running else f"the container is {word}", tail)
    code = int(state.get("ExitCode", 0))
    if code == 0 and not state.get("Error"):
        return PlatformStatus("stopped", name, "", "the container exited with code 0", tail)
    signal = f", by signal {code - 128}" if 128 < code < 160 else ""
    reason = exit_reason(state) or f"the container exited with code {code}{signal}"
    return PlatformStatus("failed", name, "", reason, tail)


def status(platform: str, job_id: str, programs: Programs) -> PlatformStatus | None:
    """Return the status of a container; None: docker has none of this name, or the platform is another."""
    if not _has_docker(platform, programs):
        return None
    done = programs.run(["docker", "inspect", "--type=container", "--format={{json .State}}", job_id])
    if is_missing(done):
        return None
    if done.code:
        raise PlatformError(f"docker inspect failed: {done.summary}", DAEMON)
    logs = programs.run(["sh", "-c", 'exec docker logs "--tail=$0" "$1" 2>&1', str(TAIL), job_id])
    return read_state(done.out, job_id, tuple(logs.out.splitlines()[-TAIL:]))


def stop(platform: str, job_id: str, entry: Entry, programs: Programs) -> None:
    if platform == "slurm":  # by its name too: Slurm reuses numbers
        programs.run(["scancel", f"--jobname={job_id}", *filter(None, [entry.platform_job_id])])
    if _has_docker(platform, programs):
        for words in (["stop", f"--time={STOP_S}"], ["rm", "--force", "--volumes"]):
            done = programs.run(["docker", *words, job_id], timeout_s=STOP_S + 60)
            if done.code and not is_missing(done):
                raise PlatformError(f"docker {words[0]} failed: {done.summary}", DAEMON)


def _has_docker(platform: str, programs: Programs) -> bool:
    return platform == "docker" and shutil.which("docker", path=programs.environ.get("PATH", "")) is not None
