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
from typing import Final, cast

from msgspec import structs

from pilotlight.contract import is_predictor_image
from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.jobs.job_validation import validate_job
from pilotlight.microservices.jobs.service_document import (
    KUBERNETES,
    MODELS,
    MOUNTING,
    MOUNTS,
    has_sockets,
    service_document,
    service_name,
)
from pilotlight.microservices.jobs.service_status import is_accepted, platform_status
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus, platform_name
from pilotlight.targets import table
from pilotlight.targets.docker import options_and_checks as docker
from pilotlight.targets.local.control_process_launcher import living
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.supervisor.gpus import find_devices
from pilotlight.targets.options import Option, check_missing, resolve_options
from pilotlight.targets.programs import Programs
from pilotlight.targets.secret_redaction import redact
from pilotlight.targets.slurm import options_and_checks as slurm
from pilotlight.targets.target import Key, ServiceStatus, Target
from pilotlight.wire.unix_socket import SCHEME, is_unix

TAIL: Final = 50
HEADING: Final = "==> "  # of another replica's lines
ACCEPT_S: Final = 60.0
STOP_S: Final = 120.0  # its grace period, and what a daemon takes besides
NAMESPACE: Final = Option("namespace", "where it runs")
FOLDERS: Final = Option(MOUNTS, "folders of its machine that the container sees: /models:/models:ro, comma separated")
REQUIRED_OF_JOBS: Final = ("account",)  # as TAO's scripts require it, though a cluster may not
CLUSTER_OPTIONS: Final = (
    Option(NAMESPACE.name, NAMESPACE.help, variables=("PILOTLIGHT_NAMESPACE",), default="default"),
    Option("image_pull_secret", "a Secret for the image's registry; nvcr.io needs one", needed_for="nvcr.io/"),
    Option("context", "of the kubeconfig; else its current one", variables=("PILOTLIGHT_CONTEXT",)),
    Option("volume_claim", f"a PersistentVolumeClaim with models, mounted at {MODELS}"),
    Option("cpu", "what it asks for, such as 2 or 500m"),
    Option("memory", "what it asks for and may use, such as 8Gi"),
    Option(
        "address_wait",
        "seconds for a load balancer to give an address; 30, and inside a cluster 0",
        variables=("PILOTLIGHT_ADDRESS_WAIT",),
    ),
)
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
IS_DOWN: Final = "the platform is down; platformctl up starts it again"


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
        module = table.module(self.name)
        declared = module.OPTIONS if module else ()
        self._target_options = {each.name for each in declared}
        declared = tuple(
            structs.replace(each, required=each.required or each.name in REQUIRED_OF_JOBS) for each in declared
        )
        self.options = (*declared, *((FOLDERS,) if self.name in MOUNTING else ()), NAMESPACE)
        if self.name == KUBERNETES:
            self.options = CLUSTER_OPTIONS
        self._foreign = None
        if self.name == "docker" and shutil.which("docker", path=environ.get("PATH", "")):
            from pilotlight.microservices.jobs.foreign_containers import ForeignContainers  # it imports much

            self._foreign = ForeignContainers(environ)

    def preflight(self, job: Job) -> Job:
        """Check requirements before anything is started; return the job with all its options.

        A cluster checks the rest before it writes anything.
        """
        values, missing = resolve_options(self.options, job.options, self._environ, job.image)
        check_missing(missing, self.name)
        job = validate_job(structs.replace(job, options=values))
        if self.name == KUBERNETES:
            self._address_wait(job)
            return job
        if self.name == "local":
            _check_process(job)
        document = self._document(job)
        if self.name == "docker":
            docker.check_image(job.image, self._environ, job.options)
        elif self.name in table.REMOTE:
            _apply(document, _job_key(job), self._connect(job.options), dry_run=True)
        return job

    def start(self, job: Job) -> Entry:
        """Start a job of `preflight`; return once the target has accepted it. The model may still load for long."""
        document, key = self._document(job), _job_key(job)
        target = self._connect(job.options)
        self._set_secret(target, job)
        _apply(document, key, target)
        return self._entry(job, target, key)

    def provisional_entry(self, options: Mapping[str, str], network_arch: str = "", host_port: int = 0) -> Entry:
        """Return the entry of a start in progress, from which it can be stopped by its job id."""
        values, _ = resolve_options(self.options, options, self._environ)
        where = values.get("instance_id") or values.get("context")
        started, namespace = utc_now("seconds", "+00:00"), values.get(NAMESPACE.name)
        return Entry(self.name, network_arch, "", started, host_port or None, None, where, namespace)

    def _entry(self, job: Job, target: Target, key: Key) -> Entry:
        entry = self.provisional_entry(job.options, job.network_arch, job.host_port)
        if self.name == KUBERNETES:
            from pilotlight.targets.kubernetes.client import current_context

            url, where = self._cluster_url(job, target, key), entry.instance_id or current_context() or None
            return structs.replace(entry, host_url=url, host_port=None, platform_job_id=key[1], instance_id=where)
        status, handle = _await_accepted(target, key)
        url = f"http://localhost:{job.host_port}" if self._embedded else status.url
        if has_sockets(job, self.name):  # each replica has its own in a folder there
            url = status.url or f"{SCHEME}{self._home.sockets}"
        if self.name == "brev":  # an instance that was created has its name
            return structs.replace(entry, host_url=url, instance_id=entry.instance_id or handle)
        number = None if self.name in ("local", "docker") else handle
        return structs.replace(entry, host_url=url, platform_job_id=number)

    def _cluster_url(self, job: Job, target: Target, key: Key) -> str:
        """Return the address of the load balancer, else a name that only the cluster knows."""
        until = time.monotonic() + self._address_wait(job)
        while not (url := (status := target.status(key)).urls.get("load_balancer")) and time.monotonic() < until:
            time.sleep(target.poll_s)
        return url or status.url

    def _address_wait(self, job: Job) -> float:
        """Return the seconds to wait for an address."""
        if job.closed:
            return 0.0
        text = job.options.get("address_wait") or ("0" if self._environ.get("KUBERNETES_SERVICE_HOST") else "30")
        try:
            return max(0.0, float(text))
        except ValueError:
            raise UsageError(f"address_wait = {text}, must be a number of seconds") from None

    def _connect(self, options: Mapping[str, str] = {}, *, start: bool = True, context: str | None = None) -> Target:
        """Connect; `options` are a job's. The connection to a cluster is kept: it is expensive."""
        context = context or options.get("context", "")
        if context in self._clusters:
            return self._clusters[context]
        chosen = {name: value for name, value in options.items() if name in self._target_options}
        target = self._open(self.name, self._environ, start=start, options=chosen, context=context)
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
        if self._foreign is not None and (foreign := self._foreign.status(job_id)) is not None:
            return foreign
        if is_down and self._home.database.exists():
            return PlatformStatus("stopped", reason=IS_DOWN)
        return PlatformStatus("gone", reason=f"{self.name} has no service of it")

    def stop(self, job_id: str, entry: Entry) -> None:
        """Stop it and remove everything that `start` created; no error if it does not exist."""
        if (not self._embedded or self._home.database.exists()) and self._delete(job_id, entry):
            return
        if self._foreign is not None:
            self._foreign.stop(job_id)
        elif self.name == "slurm":  # a job of an earlier release, by its name too: Slurm reuses numbers
            words = ["scancel", f"--jobname={job_id}", *filter(None, [entry.platform_job_id])]
            Programs(self._environ).run(words)

    def _delete(self, job_id: str, entry: Entry) -> bool:
        """Delete the service and wait for its end; return whether there was one."""
        target, key = self._connect(context=entry.instance_id), _key(job_id, entry.namespace)
        try:
            target.delete(key)
        except NotFound:
            return False
        if self.name in table.REMOTE:  # an instance may take minutes to end
            return True
        until = time.monotonic() + STOP_S
        with suppress(NotFound):
            while time.monotonic() < until:
                target.status(key)
                time.sleep(target.poll_s)
            raise TimedOut(f"{'/'.join(key)} did not end within {STOP_S:g} s", "stop it once more")
        shutil.rmtree(self._home.logs / key[0] / key[1], ignore_errors=True)  # careless models write secrets there
        return True

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        """Yield the URL: a port of this machine, else a route of the target, such as a tunnel or a replica's socket."""
        if self.name in ("local", "docker") and not is_unix(entry.host_url):
            yield entry.host_url
            return
        target = self._connect(start=False, context=entry.instance_id)
        status = target.status(_key(job_id, entry.namespace))
        if not status.url:
            reason = platform_status(status).reason
            raise PlatformError(f"{job_id} cannot be asked: {reason}", f"platformctl microservice status {job_id}")
        with target.open_route(status) as route:
            yield route.url

    def _document(self, job: Job) -> str:
        """Return the document; where there are no GPUs, or a process has its own choice of them, it gets none."""
        if self.name == KUBERNETES:
            gpus = not is_predictor_image(job.image) or self._cluster_has_gpus(job)
        elif not self._embedded:
            gpus = not job.options.get("resource_shape", "gpu.").startswith("cpu.")
        elif self.name == "slurm":
            gpus = slurm.has_gpus(self._environ, job.options["partition"])
        elif (devices := len(find_devices())) and job.num_gpus > devices:
            raise PlatformError(f"num_gpus = {job.num_gpus}, and this machine has {devices}", "--num-gpus N")
        else:
            gpus = devices > 0 and not (self.name == "local" and VISIBLE in job.env)
        return service_document(job, self.name, job.num_gpus if gpus else 0)

    def _cluster_has_gpus(self, job: Job) -> bool:
        from pilotlight.targets.kubernetes.preflight import has_gpus
        from pilotlight.targets.kubernetes.target import KubernetesTarget

        return has_gpus(cast(KubernetesTarget, self._connect(job.options)).cluster)


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


def _await_accepted(target: Target, key: Key) -> tuple[ServiceStatus, str]:
    """Wait until it is accepted; return what its daemon or queue calls it, too.

    The address of a cloud is awaited as well, but may come later.
    """
    until = time.monotonic() + ACCEPT_S
    while True:
        status, is_late = target.status(key), time.monotonic() > until
        if is_accepted(status):
            if is_late or status.url or target.name not in table.REMOTE:
                return status, next((each.handle for row in status.revisions for each in row.replicas), "")
        elif is_late:
            raise TimedOut(f"{'/'.join(key)} was not started within {ACCEPT_S:g} s: {platform_status(status).reason}")
        time.sleep(target.poll_s)


def _check_process(job: Job) -> None:
    """Raise UsageError for what no process of this machine can run or load."""
    if not is_predictor_image(job.image):
        message = f"{job.image} is a container image, and the platform local runs processes of our own predictor"
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
