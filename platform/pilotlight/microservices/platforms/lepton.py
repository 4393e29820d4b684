"""Platform lepton: endpoints of a DGX Cloud Lepton workspace, by the CLI `lep endpoint`. Experimental.

Secrets are those of the workspace, referred to by name. The resource shape determines the GPUs.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms.commands import validate_job
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus, State
from pilotlight.targets.lepton.target import OPTIONS, check_shape
from pilotlight.targets.lepton.workspace import LOGIN, Workspace, address, word_of

ADDRESS_S: Final = 60.0
POLL_S: Final = 1.0
TAIL: Final = 50
_STATES: Final[Mapping[str, State]] = {
    "Ready": "running", "Starting": "pending", "Not Ready": "pending", "Updating": "pending", "Scaling": "pending",
    "Migrating": "pending", "Restarting": "pending", "UNK": "pending", "Stopping": "stopped", "Stopped": "stopped",
    "Deleting": "stopped", "Error": "failed",
}  # fmt: skip


def make(environ: Mapping[str, str]) -> "Lepton":
    return Lepton(environ)


class Lepton:
    name = "lepton"
    own_ports = False
    options = OPTIONS

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._workspace = Workspace(environ)

    def preflight(self, job: Job) -> None:
        create_arguments(validate_job(job))
        self._workspace.check_secrets(job.secrets)

    def start(self, job: Job) -> Entry:
        programs = self._workspace.programs.redacting(validate_job(job).secrets)
        programs.run_checked(create_arguments(job), hint=LOGIN)
        name = endpoint_name(job.id)
        started = utc_now("seconds", "+00:00")
        return Entry("lepton", job.network_arch, self._address(name), started, platform_job_id=name)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        name = entry.platform_job_id or endpoint_name(job_id)
        document = self._workspace.get(name)
        if document is None:
            return PlatformStatus("gone", name, reason="the Lepton workspace has no such endpoint")
        return seen(document, name, tuple(self._workspace.log(name, TAIL)))

    def stop(self, job_id: str, entry: Entry) -> None:
        self._workspace.remove(entry.platform_job_id or endpoint_name(job_id))

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        url = entry.host_url or self._address(entry.platform_job_id or endpoint_name(job_id))
        if not url:
            raise PlatformError(f"{job_id} has no address yet", f"platformctl microservice status {job_id}")
        yield url

    def _address(self, name: str) -> str:
        """Return the endpoint's URL; "" if it is not assigned soon after creation."""
        deadline = time.monotonic() + ADDRESS_S
        while not (url := address(self._workspace.get(name) or {})) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return url


def endpoint_name(job_id: str) -> str:
    """Return the endpoint's name: it begins with a letter and has at most 36 characters."""
    return f"ms-{job_id.replace('-', '')[:32].lower()}"


def create_arguments(job: Job) -> list[str]:
    shape = job.options.get("resource_shape", "")
    check_shape(shape, job.num_gpus if shape.startswith("gpu.") else 0, f"num_gpus = {job.num_gpus}")
    if job.options.get("access", "open") != "open":
        raise UsageError(f"access = {job.options['access']}, must be open or left out")
    named = {"--node-group": "dedicated_node_group", "--image-pull-secrets": "image_pull_secret"}
    return [
        "lep", "endpoint", "create", "--name", endpoint_name(job.id), "--container-image", job.image,
        "--container-port", str(job.port), "--container-command", job.command, "--resource-shape", shape,
        "--replicas-static", "1",
        *(word for name, value in job.env.items() for word in ("--env", f"{name}={value}")),
        *(word for name in job.secrets for word in ("--secret", name)),
        *(word for flag, option in named.items() if (value := job.options.get(option)) for word in (flag, value)),
        *(["--allow-unauthenticated-access"] if job.options.get("access") else ()),
    ]  # fmt: skip


def seen(document: Mapping[str, Any], name: str, tail: tuple[str, ...] = ()) -> PlatformStatus:
    word = word_of(document)
    state = _STATES.get(word, "pending")
    reason = "" if state == "running" else f"Lepton says {word}: lep endpoint events --name {name} tells why"
    return PlatformStatus(state, name, "", reason, tail)
