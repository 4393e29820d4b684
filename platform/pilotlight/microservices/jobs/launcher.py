"""Start of a microservice: start request, job, preflight, port, platform, registry.

`build_job` is pure but for the reference tables; `start` has the effects, and rolls back when a step fails. Used by
the command line and the control API.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.jobs import host_ports
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry import container_command, secret_references
from pilotlight.microservices.registry.records import PLATFORMS, Entry, Isolation, Job, platform_name
from pilotlight.microservices.registry.registry_file import Registry

PENDING_S: Final = 3600.0  # an image may have tens of GB
OWN_COMMAND: Final = "pilotlight"  # reads stores itself


class StartRequest(Struct, frozen=True):
    """Request to start a microservice.

    `remote`: started by the control API or a batch job, which passes credentials of cloud storage and is its only
    client; the API authorises requests.
    """

    network_arch: str
    model_path: str
    platform: str
    num_gpus: int = 1
    options: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    host_port: int = 0
    image: str = ""  # overrides the tables
    remote: bool = False
    isolation: Isolation = ""
    kind: str = ""  # of a network of one's own


def build_job(request: StartRequest, environ: Mapping[str, str], job_id: str = "") -> Job:
    """Return the job of a start request. Raise for everything that can be rejected without the platform."""
    platform = PLATFORMS[platform_name(request.platform)]
    if request.num_gpus < 1:
        raise UsageError(f"num_gpus = {request.num_gpus}, must be at least 1")
    if platform.secrets_by_name and request.isolation and request.secrets:
        problem = f"{request.secrets[0]} of an org would use the Lepton workspace's own secret of that name"
        raise UsageError(problem, "use a store without credentials, or the operator registers the model")
    secret_references.check_plain(request.env)
    for what, text in {"model_path": request.model_path, **request.env, **request.options}.items():
        secret_references.check_absent(what, text, environ)
    arch = container_command.arch(request.network_arch, environ, request.kind)
    job_id = job_id or str(uuid4())
    # Without a logging server TAO containers report to none.
    tao = {"TAO_EXECUTION_BACKEND": platform.backend, "TAO_API_JOB_ID": job_id, "CLOUD_BASED": "False"}
    env = {**request.env, **tao}
    path = request.model_path
    if platform.shares_files and path and "://" not in path:
        path = str(Path(path).expanduser().absolute())
    model = container_command.parse(path, remote=request.remote)
    isolation, fetches = "" if request.isolation == "container" else request.isolation, platform.fetches_models
    inputs = container_command.CommandInputs(job_id, request.network_arch, model, env, request.num_gpus, fetches)
    own = arch.command == OWN_COMMAND
    secrets = () if request.isolation else arch.secrets  # those of the operator are not for an org's model
    return Job(
        id=job_id, network_arch=request.network_arch, model_path=model.uri,
        command=container_command.build(arch.command, inputs, environ), env=env, num_gpus=request.num_gpus,
        image=request.image or container_command.resolve(request.network_arch, environ, request.kind),
        secrets=secret_references.select(secrets, request.secrets, environ), port=container_command.PORT,
        host_port=request.host_port, options=request.options, folder=arch.folder, closed=request.remote,
        isolation=isolation, fetch=model.uri if fetches and model.kind == "remote" and not own else "",
        fetch_image=container_command.resolve(OWN_COMMAND, environ) if platform is PLATFORMS["kubernetes"] else "",
    )  # fmt: skip


def start(
    job: Job, target: TargetService, registry: Registry, wait_s: float = PENDING_S,
    report: Callable[[str], None] = lambda _: None,
) -> Entry:  # fmt: skip
    """Run preflight, start the job and register it. Roll back when a step fails.

    Scripts take what is registered for running, so a job that is not the API's own must leave the queue of its platform
    within `wait_s`; `report` gets the reasons why it waits.
    """
    claim: AbstractContextManager[int] = nullcontext(job.host_port)
    if target.own_ports or host_ports.of_instance(target.name):
        claim = host_ports.claim_port(registry, target.name, job.host_port, job.options.get("instance_id"))
    with claim as port:
        job = target.preflight(replace(job, host_port=port))
        entry = replace(target.provisional_entry(job.options, job.network_arch, port), closed=job.closed)
        try:
            entry = target.start(job, wait_s if target.own_ports and not job.closed else None, report)
            entry = replace(entry, closed=job.closed)
            registry.add(job.id, entry)
        except BaseException as error:
            _roll_back(job.id, entry, target, registry, error)
            raise
    return entry


def _roll_back(job_id: str, entry: Entry, target: TargetService, registry: Registry, error: BaseException) -> None:
    """Stop a failed start. Where that fails too, register it, so that it can be stopped later."""
    try:
        target.stop(job_id, entry)
    except PlatformError as failed:
        with suppress(PlatformError):
            registry.add(job_id, entry)
        message = f"{error}; its cleanup failed: {failed}"
        raise PlatformError(message, f"platformctl microservice stop {job_id}") from error
