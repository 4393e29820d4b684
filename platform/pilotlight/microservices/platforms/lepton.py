"""Platform lepton: endpoints of a DGX Cloud Lepton workspace, by the CLI `lep endpoint`. Experimental.

Secrets are those of the workspace, referred to by name. The resource shape determines the GPUs.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.commands import validate_job
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus, State
from pilotlight.targets.programs import CompletedCommand, Programs

ADDRESS_S: Final = 60.0
POLL_S: Final = 1.0
TAIL: Final = 50
LOGIN: Final = "lep login, or see lep workspace list"
# Its tables and documents are wrapped at the terminal's width, even within a word.
PLAIN: Final = {"COLUMNS": "100000", "NO_COLOR": "1", "TERM": "dumb"}
_STATES: Final[Mapping[str, State]] = {
    "Ready": "running", "Starting": "pending", "Not Ready": "pending", "Updating": "pending", "Scaling": "pending",
    "Migrating": "pending", "Restarting": "pending", "UNK": "pending", "Stopping": "stopped", "Stopped": "stopped",
    "Deleting": "stopped", "Error": "failed",
}  # fmt: skip
_SHAPE: Final = re.compile(r"gpu\.(?:(\d+)x)?")


def make(environ: Mapping[str, str]) -> "Lepton":
    return Lepton(environ)


class Lepton:
    name = "lepton"
    own_ports = False
    options = (
        Option("resource_shape", "experimental; shape of the machine, such as gpu.8xh100-sxm", required=True),
        Option("dedicated_node_group", "node group that it runs in; otherwise resources on demand"),
        Option("image_pull_secret", "the workspace's registry credential, which nvcr.io needs"),
        Option("access", "open: the endpoint asks no token of who calls; otherwise as the workspace has it"),
    )

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._programs = Programs({**environ, **PLAIN})

    def preflight(self, job: Job) -> None:
        create_arguments(validate_job(job))
        done = self._programs.run(["lep", "secret", "list"])
        if done.code:
            raise PlatformError(f"the Lepton workspace does not answer: {done.summary}", LOGIN)
        there = set(re.findall(r"[\w-]+", done.out))
        if missing := [name for name in job.secrets if name not in there]:
            said = f"the Lepton workspace has no secret called {missing[0]}"
            raise PlatformError(said, "add it in the workspace's settings: its value is never sent from here")

    def start(self, job: Job) -> Entry:
        programs = self._programs.redacting(validate_job(job).secrets)
        programs.run_checked(create_arguments(job), hint=LOGIN)
        name = endpoint_name(job.id)
        started = utc_now("seconds", "+00:00")
        return Entry("lepton", job.network_arch, self._address(name), started, platform_job_id=name)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        name = entry.platform_job_id or endpoint_name(job_id)
        document = self._get(name)
        if document is None:
            return PlatformStatus("gone", name, reason="the Lepton workspace has no such endpoint")
        return seen(document, name, self._tail(name))

    def stop(self, job_id: str, entry: Entry) -> None:
        done = self._programs.run(
            ["lep", "endpoint", "remove", "--name", entry.platform_job_id or endpoint_name(job_id)]
        )
        if done.code and not _is_missing(done):
            raise PlatformError(f"lep endpoint remove failed: {done.summary}", LOGIN)

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        url = entry.host_url or self._address(entry.platform_job_id or endpoint_name(job_id))
        if not url:
            raise PlatformError(f"{job_id} has no address yet", f"platformctl microservice status {job_id}")
        yield url

    def _address(self, name: str) -> str:
        """Return the endpoint's URL; "" if it is not assigned soon after creation."""
        deadline = time.monotonic() + ADDRESS_S
        while not (url := address(self._get(name) or {})) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return url

    def _get(self, name: str) -> dict[str, Any] | None:
        done = self._programs.run(["lep", "endpoint", "get", "--name", name])
        if _is_missing(done):
            return None
        if done.code:
            raise PlatformError(f"lep endpoint get failed: {done.summary}", LOGIN)
        return read_document(done.out)

    def _tail(self, name: str) -> tuple[str, ...]:
        words = ["lep", "log", "get", "--endpoint", name, "--limit", str(TAIL), "--without-timestamp"]
        done = self._programs.run(words)
        return tuple(done.out.splitlines()[-TAIL:]) if done.code == 0 else ()


def endpoint_name(job_id: str) -> str:
    """Return the endpoint's name: it begins with a letter and has at most 36 characters."""
    return f"ms-{job_id.replace('-', '')[:32].lower()}"


def create_arguments(job: Job) -> list[str]:
    shape = job.options.get("resource_shape", "")
    if not shape:
        raise UsageError("resource_shape is missing", "give --resource-shape, such as gpu.8xh100-sxm")
    gpus = _SHAPE.match(shape)
    if gpus and int(gpus[1] or 1) < job.num_gpus:
        raise UsageError(f"num_gpus = {job.num_gpus}, but the shape {shape} has {gpus[1] or 1}")
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


def read_document(text: str) -> dict[str, Any]:
    """Parse `lep endpoint get`: one JSON object, possibly with lines around it."""
    try:
        document = json.loads(text[text.index("{") : text.rindex("}") + 1], strict=False)
    except ValueError:
        raise PlatformError("lep endpoint get printed no JSON", "pip install -U leptonai") from None
    return document if isinstance(document, dict) else {}


def address(document: Mapping[str, Any]) -> str:
    endpoint = (document.get("status") or {}).get("endpoint") or {}
    return str(endpoint.get("external_endpoint") or "").rstrip("/")


def seen(document: Mapping[str, Any], name: str, tail: tuple[str, ...] = ()) -> PlatformStatus:
    word = str((document.get("status") or {}).get("state") or "UNK")
    state = _STATES.get(word, "pending")
    reason = "" if state == "running" else f"Lepton says {word}: lep endpoint events --name {name} tells why"
    return PlatformStatus(state, name, "", reason, tail)


def _is_missing(done: CompletedCommand) -> bool:
    return bool(done.code) and re.search(r"\b404\b", done.out + done.err) is not None
