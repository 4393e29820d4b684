"""Containers of this machine that bear a job's id and belong to no service: scripts and earlier releases."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.microservices.registry.records import PlatformStatus, State
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
        return PlatformStatus("stopped", name, "", "the container ended by itself with exit code 0", tail)
    signal = f", by signal {code - 128}" if 128 < code < 160 else ""
    reason = exit_reason(state) or f"the container ended with exit code {code}{signal}"
    return PlatformStatus("failed", name, "", reason, tail)


class ForeignContainers:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._programs = Programs(environ)

    def status(self, job_id: str) -> PlatformStatus | None:
        """Return the status of a container; None: docker has none of this name."""
        done = self._programs.run(["docker", "inspect", "--type=container", "--format={{json .State}}", job_id])
        if is_missing(done):
            return None
        if done.code:
            raise PlatformError(f"docker inspect failed: {done.summary}", DAEMON)
        logs = self._programs.run(["sh", "-c", 'exec docker logs "--tail=$0" "$1" 2>&1', str(TAIL), job_id])
        return read_state(done.out, job_id, tuple(logs.out.splitlines()[-TAIL:]))

    def stop(self, job_id: str) -> None:
        for words in (["stop", f"--time={STOP_S}"], ["rm", "--force", "--volumes"]):
            done = self._programs.run(["docker", *words, job_id], timeout_s=STOP_S + 60)
            if done.code and not is_missing(done):
                raise PlatformError(f"docker {words[0]} failed: {done.summary}", DAEMON)
