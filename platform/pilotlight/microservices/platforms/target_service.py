"""Microservices as services of an embedded target: each is planned, applied, watched and deleted as any service.

Implements `Platform`. The control process is one of its own, also for its own API, which calls this in threads.
"""

import io
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from msgspec import structs

from pilotlight.errors import NotFound, PlatformError, TimedOut
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms.commands import set_secrets, validate_job
from pilotlight.microservices.platforms.containers import ForeignContainers
from pilotlight.microservices.platforms.host_ports import check_free
from pilotlight.microservices.platforms.service_document import MOUNTS, service_document, service_name
from pilotlight.microservices.platforms.service_status import platform_status
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus
from pilotlight.targets import table
from pilotlight.targets.docker import target as docker
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.control_process_launcher import ensure, living
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.supervisor.gpus import find_devices
from pilotlight.targets.options import Option, check_missing, resolve_options
from pilotlight.targets.programs import Programs
from pilotlight.targets.secret_redaction import redact
from pilotlight.targets.slurm import target as slurm
from pilotlight.targets.target import Key

TAIL: Final = 50
HEADING: Final = "==> "  # of another replica's lines
POLL_S: Final = 0.1
ACCEPT_S: Final = 60.0
STOP_S: Final = 120.0  # its grace period, and what a daemon takes besides
NAMESPACE: Final = Option("namespace", "where it runs")
FOLDERS: Final = Option(MOUNTS, "folders of its machine that the container sees: /models:/models:ro, comma separated")
ASKED_FOR: Final = ("account",)  # of those who run inference services by scripts, though a cluster may not need it
IS_DOWN: Final = "the platform is down; platformctl up starts it again"


class TargetService:
    """Microservices of one target; `environ` names the home of the control process and holds values of secrets."""

    own_ports = True

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self.name, self._environ, self._home = name, environ, home(environ)
        module = table.module(name)
        declared = module.OPTIONS if module else ()
        self._target_options = {each.name for each in declared}
        named = [each for each in (FOLDERS, NAMESPACE) if each.name not in self._target_options]
        self.options = tuple(
            structs.replace(each, required=each.required or each.name in ASKED_FOR) for each in (*declared, *named)
        )
        self._foreign = ForeignContainers(environ) if name == "docker" else None

    def preflight(self, job: Job) -> None:
        job = self._resolved(job)
        self._document(job)
        if self.name == "docker":
            docker.check_image(job.image, self._environ, job.options)
        check_free(job)

    def start(self, job: Job) -> Entry:
        job = self._resolved(job)
        document, namespace = self._document(job), job.options.get(NAMESPACE.name)
        options = {name: value for name, value in job.options.items() if name in self._target_options}
        target, key = LocalTarget(ensure(self._home), self.name, options), _key(job.id, namespace)
        self.restore(job)
        _apply(document, key, target)
        handle = _await_accepted(target, key)
        url, started = f"http://localhost:{job.host_port}", utc_now("seconds", "+00:00")
        job_number = handle if self.name == "slurm" else None
        return Entry(self.name, job.network_arch, url, started, job.host_port, job_number, namespace=namespace)

    def _resolved(self, job: Job) -> Job:
        """Return the job with all its options. Raise UsageError for what is missing or could be misinterpreted."""
        values, missing = resolve_options(self.options, validate_job(job).options, self._environ, job.image)
        check_missing(missing, self.name)
        return structs.replace(job, options=values)

    def restore(self, job: Job) -> None:
        """Give the values of its secrets to the control process, also to a new one: it keeps them in memory only."""
        if names := set_secrets(job, self._environ):
            target = LocalTarget(ensure(self._home), self.name)
            values = {name: self._environ[name] for name in names}
            target.set_secret(_key(job.id, job.options.get(NAMESPACE.name)), values)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        address, key = living(self._home), _key(job_id, entry.namespace)
        if address is not None:
            target = LocalTarget(address, self.name)
            with suppress(NotFound):
                status = target.status(key)
                failed = platform_status(status).state == "failed"
                tail = _last_section(target.logs(key, follow=False, previous=failed, replica="", tail=TAIL))
                return platform_status(status, [redact(line, self._environ) for line in tail])
        if self._foreign is not None and (foreign := self._foreign.status(job_id)) is not None:
            return foreign
        if address is None and self._home.database.exists():
            return PlatformStatus("stopped", reason=IS_DOWN)
        return PlatformStatus("gone", reason=f"{self.name} has no service of it")

    def stop(self, job_id: str, entry: Entry) -> None:
        if self._home.database.exists() and self._delete(_key(job_id, entry.namespace)):
            return
        if self._foreign is not None:
            self._foreign.stop(job_id)
        elif self.name == "slurm":  # a job of an earlier release, by its name too: Slurm reuses numbers
            words = ["scancel", f"--jobname={job_id}", *filter(None, [entry.platform_job_id])]
            Programs(self._environ).run(words)

    def _delete(self, key: Key) -> bool:
        """Delete the service and wait for its end; return whether there was one."""
        target = LocalTarget(ensure(self._home), self.name)
        try:
            target.delete(key)
        except NotFound:
            return False
        until = time.monotonic() + STOP_S
        with suppress(NotFound):
            while time.monotonic() < until:
                target.status(key)
                time.sleep(POLL_S)
            raise TimedOut(f"{'/'.join(key)} did not end within {STOP_S:g} s", "stop it once more")
        return True

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        """Yield the URL; of Slurm the address of the job, which may be on this machine or behind a tunnel."""
        if self.name != "slurm":
            yield entry.host_url
            return
        status = LocalTarget(ensure(self._home, start=False), self.name).status(_key(job_id, entry.namespace))
        if not status.url:
            reason = platform_status(status).reason
            raise PlatformError(f"{job_id} cannot be asked: {reason}", f"platformctl microservice status {job_id}")
        yield status.url

    def _document(self, job: Job) -> str:
        """Return the document; where there are no GPUs it gets none."""
        if self.name == "slurm":
            gpus = slurm.has_gpus(self._environ, job.options["partition"])
        elif (devices := len(find_devices())) and job.num_gpus > devices:
            raise PlatformError(f"num_gpus = {job.num_gpus}, and this machine has {devices}", "--num-gpus N")
        else:
            gpus = devices > 0
        return service_document(job, self.name, job.num_gpus if gpus else 0)


def _key(job_id: str, namespace: str | None) -> Key:
    return namespace or "default", service_name(job_id)


def _apply(document: str, key: Key, target: LocalTarget) -> None:
    """Plan, render and apply. The modules are imported here: they take most of a second."""
    from pilotlight.plan.types import Capabilities
    from pilotlight.release.apply import ReleaseRequest, apply, prepare
    from pilotlight.release.plan_and_render import Sources, read

    documents = read(Sources(("-",), stdin=io.StringIO(document), namespace=key[0]))
    capabilities = replace(Capabilities(), **target.capabilities())
    request = ReleaseRequest(documents, capabilities, note="microservice start")
    apply(request, prepare(request, target)[0], target)


def _await_accepted(target: LocalTarget, key: Key) -> str:
    """Wait until its daemon or queue has it, a GPU is awaited, or it has failed; return what it is called there."""
    until = time.monotonic() + ACCEPT_S
    while (status := target.status(key)) and time.monotonic() < until:
        replica = next((each for row in status.revisions for each in row.replicas), None)
        if platform_status(status).state != "pending" or (replica and (replica.handle or replica.state == "waiting")):
            return replica.handle if replica else ""
        time.sleep(POLL_S)
    raise TimedOut(f"{'/'.join(key)} was not started within {ACCEPT_S:g} s: {platform_status(status).reason}")


def _last_section(lines: Iterable[str]) -> list[str]:
    """Return the lines of the last replica, after its heading."""
    section: list[str] = []
    for line in lines:
        section = [] if line.startswith(HEADING) else [*section, line]
    return section
