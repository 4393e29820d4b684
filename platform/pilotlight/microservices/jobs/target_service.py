"""Microservices as services of a target: each is planned, applied, watched and deleted as any service.

Calls block: the API makes them in threads, also those to the control process that serves it. On a cluster the entry
stores the kubeconfig context as `instance_id`, since the current one may change. A microservice of the API has no
address outside of the cluster, since clients go through the API.
"""

import io
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec import structs

from pilotlight.contract import is_predictor_image
from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.jobs.service_document import (
    KUBERNETES,
    MOUNTS,
    has_sockets,
    service_document,
    service_name,
)
from pilotlight.microservices.jobs.service_status import is_accepted, platform_status
from pilotlight.microservices.registry.records import PLATFORMS, Entry, Job, PlatformStatus, check_job, platform_name
from pilotlight.targets import table
from pilotlight.targets.kubernetes import job_options
from pilotlight.targets.local.control_process_launcher import living
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.supervisor.gpus import find_devices
from pilotlight.targets.options import Option, check_missing, resolve_options
from pilotlight.targets.programs import Programs
from pilotlight.targets.secret_redaction import redact
from pilotlight.targets.target import HEADING, Key, ServiceStatus, Target
from pilotlight.wire.unix_socket import SCHEME, is_unix

if TYPE_CHECKING:
    from pilotlight.targets.kubernetes.target import KubernetesTarget

TAIL: Final = 50
ACCEPT_S: Final = 60.0
STOP_S: Final = 120.0  # its grace period, and what a daemon takes besides
NAMESPACE: Final = Option("namespace", "Kubernetes namespace")
FOLDERS: Final = Option(MOUNTS, "folders of its machine to mount: /models:/models:ro, comma separated")
REQUIRED_OF_JOBS: Final = ("account",)  # as TAO's scripts require it, though a cluster may not
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
IS_DOWN: Final = "the platform is down; start it with platformctl up"


class TargetService:
    """Microservices of one target; `environ` names the home of the control process and holds values of secrets.

    Calls block and raise errors of `pilotlight.errors` only.
    """

    def __init__(
        self, platform: str, environ: Mapping[str, str], connect: Callable[..., Target] = table.connect
    ) -> None:
        self.name, self._environ, self._home = platform_name(platform), environ, home(environ)
        # whether `Job.host_port` is a port of this machine that must be free
        self.own_ports = self._embedded = self.name in table.EMBEDDED
        self._open, self._clusters = connect, dict[str, Target]()
        self._module, self._programs = table.module(self.name), Programs(environ)
        declared = self._module.OPTIONS if self._module else ()
        self._target_options = {each.name for each in declared}
        declared = tuple(
            structs.replace(each, required=each.required or each.name in REQUIRED_OF_JOBS) for each in declared
        )
        self.options = (*declared, *((FOLDERS,) if PLATFORMS[self.name].mounts_by_document else ()), NAMESPACE)
        if self.name == KUBERNETES:
            self.options = job_options.OPTIONS

    def preflight(self, job: Job) -> Job:
        """Check requirements before anything is started; return the job with its options and the GPUs that it gets.

        A cluster checks the rest before it writes anything.
        """
        values, missing = resolve_options(self.options, job.options, self._environ, job.image)
        check_missing(missing, self.name)
        job = check_job(structs.replace(job, options=values))
        if self.name == KUBERNETES:
            job_options.address_wait_s(job.options, self._environ)
        if self.name == "local":
            _check_process(job)
        available = self._available_gpus(job)
        if available and job.num_gpus > available:
            raise PlatformError(f"num_gpus = {job.num_gpus}, but this machine has {available}", "--num-gpus N")
        if available == 0 or (self.name == "local" and VISIBLE in job.env):  # a process may have its own choice
            job = structs.replace(job, num_gpus=0)
        document = service_document(job, self.name, job.num_gpus)
        if self.name in table.REMOTE:
            _apply(document, _job_key(job), self._connect(job.options), dry_run=True)
        return job

    def start(self, job: Job, wait_s: float | None = None, report: Callable[[str], None] = lambda _: None) -> Entry:
        """Start a job of `preflight`; return once the target has accepted it. The model may still load for long.

        `wait_s`: return once it has left the target's queue, and raise TimedOut if it does not within that time;
        `report` gets the reasons why it waits.
        """
        target, key = self._connect(job.options), _job_key(job)
        self._set_secret(target, job)
        _apply(service_document(job, self.name, job.num_gpus), key, target)
        if self.name == KUBERNETES:
            return self._cluster_entry(job, target, key)
        return self._entry(job, self._await_start(job, target, key, wait_s, report))

    def _await_start(
        self, job: Job, target: Target, key: Key, wait_s: float | None, report: Callable[[str], None]
    ) -> ServiceStatus:
        has_late_url = self.name in table.REMOTE  # it may come even after ACCEPT_S
        status = _poll(target, key, lambda now: is_accepted(now) and bool(now.url or not has_late_url), ACCEPT_S)
        if not is_accepted(status):
            raise TimedOut(f"{'/'.join(key)} was not started within {ACCEPT_S:g} s: {platform_status(status).reason}")
        if wait_s is None:
            return status
        reasons = {""}

        def has_left_queue(now: ServiceStatus) -> bool:
            seen = platform_status(now)
            if seen.state == "pending" and seen.reason not in reasons:
                reasons.add(seen.reason)
                report(f"{job.id} is pending" + ("" if seen.reason.lower().endswith("pending") else f": {seen.reason}"))
            return seen.state != "pending"

        status = _poll(target, key, has_left_queue, wait_s)
        if not has_left_queue(status):
            message = f"{job.id} was pending for {wait_s:g} s and was stopped: {platform_status(status).reason}"
            raise TimedOut(message, "wait longer: --wait SECONDS")
        return status

    def provisional_entry(self, options: Mapping[str, str], network_arch: str = "", host_port: int = 0) -> Entry:
        """Return the entry of a start in progress, from which it can be stopped by its job id."""
        values, _ = resolve_options(self.options, options, self._environ)
        where = values.get("instance_id") or values.get("context")
        started, namespace = utc_now("seconds", "+00:00"), values.get(NAMESPACE.name)
        return Entry(self.name, network_arch, "", started, host_port or None, None, where, namespace)

    def _entry(self, job: Job, status: ServiceStatus) -> Entry:
        entry = self.provisional_entry(job.options, job.network_arch, job.host_port)
        url = f"http://localhost:{job.host_port}" if self._embedded else status.url
        if has_sockets(job, self.name):  # each replica has its own in a folder there
            url = status.url or f"{SCHEME}{self._home.sockets}"
        handle = next((each.handle for row in status.revisions for each in row.replicas), "")
        handle_field = PLATFORMS[self.name].handle
        named = {handle_field: getattr(entry, handle_field) or handle} if handle_field else {}
        return structs.replace(entry, host_url=url, **named)

    def _cluster_entry(self, job: Job, target: Target, key: Key) -> Entry:
        """Return the entry with the address of the load balancer, else a name that only the cluster knows."""
        from pilotlight.targets.kubernetes.client import current_context

        wait_s = 0.0 if job.closed else job_options.address_wait_s(job.options, self._environ)
        status = _poll(target, key, lambda now: "load_balancer" in now.urls, wait_s)
        entry, url = self.provisional_entry(job.options, job.network_arch), status.urls.get("load_balancer")
        where = entry.instance_id or current_context() or None
        return structs.replace(entry, host_url=url or status.url, platform_job_id=key[1], instance_id=where)

    def _connect(self, options: Mapping[str, str] = {}, *, start: bool = True, context: str | None = None) -> Target:
        """Connect; `options` are a job's. The connection to a cluster is kept: it is expensive."""
        context = context or options.get("context", "")
        if context in self._clusters:
            return self._clusters[context]
        target_options = {name: value for name, value in options.items() if name in self._target_options}
        target = self._open(self.name, self._environ, start=start, options=target_options, context=context)
        if self.name == KUBERNETES:
            self._clusters[context] = target
        return target

    def restore(self, job: Job) -> None:
        """Give the values of its secrets to the control process, also to a new one: it keeps them in memory only."""
        if self._embedded and secret_values(job, self._environ):
            self._set_secret(self._connect(), job)

    def _set_secret(self, target: Target, job: Job) -> None:
        if values := secret_values(job, self._environ):
            target.set_secret(_job_key(job), values)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        is_down, key = self._embedded and living(self._home) is None, _key(job_id, entry.namespace)
        if not is_down:
            target = self._connect(start=False, context=entry.instance_id)
            with suppress(NotFound):
                status = target.status(key)
                if self.name in table.REMOTE and not status.url:  # nothing runs there that has a log
                    return platform_status(status)
                seen = platform_status(status, [redact(line, self._environ) for line in _tail(target, status)])
                return structs.replace(seen, reason=redact(seen.reason, self._environ))
        from pilotlight.microservices.jobs import foreign_jobs  # it imports much

        if (foreign := foreign_jobs.status(self.name, job_id, self._programs)) is not None:
            return foreign
        if is_down and self._home.database.exists():
            return PlatformStatus("stopped", reason=IS_DOWN)
        return PlatformStatus("gone", reason=f"{self.name} does not have its service")

    def stop(self, job_id: str, entry: Entry) -> None:
        """Stop it and remove everything that `start` created; no error if it does not exist."""
        if (self._embedded and not self._home.database.exists()) or not self._delete(job_id, entry):
            from pilotlight.microservices.jobs import foreign_jobs  # it imports much

            foreign_jobs.stop(self.name, job_id, entry, self._programs)

    def _delete(self, job_id: str, entry: Entry) -> bool:
        """Delete the service and wait for its end; return whether there was one."""
        target, key = self._connect(context=entry.instance_id), _key(job_id, entry.namespace)
        try:
            target.delete(key)
        except NotFound:
            return False
        if self.name in table.REMOTE:  # an instance may take minutes to end
            return True
        with suppress(NotFound):
            _poll(target, key, lambda _: False, STOP_S)
            raise TimedOut(f"{'/'.join(key)} did not stop within {STOP_S:g} s", "stop it again")
        shutil.rmtree(self._home.logs / key[0] / key[1], ignore_errors=True)  # careless models write secrets there
        return True

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        """Yield the URL: a port of this machine, else a route of the target, such as a tunnel or a replica's socket."""
        if PLATFORMS[self.name].ports == "machine" and not is_unix(entry.host_url):
            yield entry.host_url
            return
        target = self._connect(start=False, context=entry.instance_id)
        status = target.status(_key(job_id, entry.namespace))
        if not status.url:
            reason = platform_status(status).reason
            raise PlatformError(f"{job_id} cannot be reached: {reason}", f"platformctl microservice status {job_id}")
        with target.open_route(status) as route:
            yield route.url

    def _available_gpus(self, job: Job) -> int | None:
        """Return the GPUs that it may get; None: as many as it wants."""
        if self._module is not None:
            return self._module.gpus(job.image, self._environ, job.options)
        if self.name == "local":
            return len(find_devices())
        return job_options.gpus(job.image, cast("KubernetesTarget", self._connect(job.options)).cluster)


def secret_values(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the job's secrets that are set in the environment."""
    return {name: environ[name] for name in job.secrets if environ.get(name)}


def _key(job_id: str, namespace: str | None) -> Key:
    return namespace or "default", service_name(job_id)


def _job_key(job: Job) -> Key:
    return _key(job.id, job.options.get(NAMESPACE.name))


def _apply(document: str, key: Key, target: Target, *, dry_run: bool = False) -> None:
    """Plan, render and apply. The modules are imported here: they take most of a second."""
    from pilotlight.plan.types import Capabilities
    from pilotlight.release.apply import ReleaseRequest, apply, prepare
    from pilotlight.release.plan_and_render import Sources, read

    documents = read(Sources(("-",), stdin=io.StringIO(document), namespace=key[0]))
    capabilities = replace(Capabilities(), **target.capabilities())
    request = ReleaseRequest(documents, capabilities, note="microservice start")
    apply(request, prepare(request, target)[0], target, dry_run=dry_run)


def _poll(target: Target, key: Key, until: Callable[[ServiceStatus], bool], seconds: float) -> ServiceStatus:
    """Return the first status that `until` is true of, else the last one within `seconds`."""
    end = time.monotonic() + seconds
    while not until(status := target.status(key)) and time.monotonic() < end:
        time.sleep(target.poll_s)
    return status


def _check_process(job: Job) -> None:
    """Raise UsageError for what no process of this machine can run or load."""
    if not is_predictor_image(job.image):
        message = f"{job.image} is a container image, and the local platform runs only the Pilotlight predictor"
        raise UsageError(message, "use --platform docker or --platform kubernetes")
    path = Path(job.model_path)
    if path.is_absolute() and not path.exists():
        raise UsageError(f"model_path = {path}, which does not exist")
    if path.is_absolute() and job.folder and not path.is_dir():
        raise UsageError(f"model_path = {path}, must be a directory for this network_arch")


def _tail(target: Target, status: ServiceStatus) -> list[str]:
    """Return the last lines of the last replica, after its heading; of one that has failed those of its last run."""
    section: list[str] = []
    key = status.namespace, status.name
    failed = platform_status(status).state == "failed"
    for previous in (True, False) if failed else (False,):
        with suppress(NotFound):  # its workload is gone
            for line in target.logs(key, follow=False, previous=previous, replica="", tail=TAIL):
                section = [] if line.startswith(HEADING) else [*section, line]
        if section:
            break
    return section
