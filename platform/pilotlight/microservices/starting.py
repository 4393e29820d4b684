"""Starts a microservice: from what a person wants to a Job, then preflight, port, platform and registry.

`job` is pure but for the reference tables; `start` has the effects, in an order that leaves nothing behind when a step
fails. The command line and the control API both come through here.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import archs, images, inner_command, model_paths, ports, secrets
from pilotlight.microservices.model import Entry, Job
from pilotlight.microservices.platforms import ALIASES, PLATFORMS, Option, Platform
from pilotlight.microservices.registry import Registry

HERE: Final = ("local", "slurm")  # their processes see this machine's files, so a path is one of this machine's


class Wish(Struct, frozen=True):
    """`remote`: the control API or a batch job starts it, gives it what it needs to read cloud storage, and is alone to
    ask it: who may ask the API is the API's to judge."""

    network_arch: str
    model_path: str
    platform: str
    num_gpus: int = 1
    options: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    host_port: int = 0
    image: str = ""  # instead of the one that the tables give
    remote: bool = False


def job(wish: Wish, environ: Mapping[str, str], job_id: str = "") -> Job:
    """Everything that can be refused without asking a platform is refused here."""
    platform = ALIASES.get(wish.platform, wish.platform)
    if platform not in PLATFORMS:
        raise UsageError(f"no platform is called {wish.platform}; there are {', '.join(PLATFORMS)}")
    if wish.num_gpus < 1:
        raise UsageError(f"num_gpus = {wish.num_gpus}, must be at least 1")
    secrets.check_plain(wish.env)
    for what, text in {"model_path": wish.model_path, **wish.env, **wish.options}.items():
        secrets.check_absent(what, text, environ)
    arch = archs.arch(wish.network_arch, environ)
    made = job_id or str(uuid4())
    env = {**wish.env, **backend_variables(platform, made)}
    model = model_paths.parse(_absolute(wish.model_path, platform), remote=wish.remote)
    inner = inner_command.Inner(made, wish.network_arch, model, env, wish.num_gpus)
    return Job(
        id=made, network_arch=wish.network_arch, model_path=model.uri, command=inner_command.build(arch.command, inner),
        image=wish.image or images.resolve(wish.network_arch, environ), env=env, num_gpus=wish.num_gpus,
        secrets=secrets.chosen(arch.secrets, wish.secrets, environ), port=inner_command.PORT, host_port=wish.host_port,
        options=wish.options, folder=arch.folder, closed=wish.remote,
    )  # fmt: skip


def backend_variables(platform: str, job_id: str) -> dict[str, str]:
    """What containers of this family read. Without a logging server nothing is ever posted back."""
    return {"TAO_EXECUTION_BACKEND": PLATFORMS[platform][1], "TAO_API_JOB_ID": job_id, "CLOUD_BASED": "False"}


def _absolute(path: str, platform: str) -> str:
    if platform in HERE and path and "://" not in path:
        return str(Path(path).expanduser().absolute())
    return path


def options(
    declared: tuple[Option, ...], given: Mapping[str, str], environ: Mapping[str, str], image: str = ""
) -> tuple[dict[str, str], list[Option]]:
    """What was given, else the variables', else the default; and those that are required and still missing."""
    known = {each.name for each in declared}
    if strangers := [name for name in given if name not in known]:
        takes = ", ".join(sorted(known)) or "none"
        raise UsageError(f"--{strangers[0].replace('_', '-')} is no option of this platform, which takes {takes}")
    values = {
        each.name: given.get(each.name)
        or next((environ[name] for name in each.variables if environ.get(name)), each.default)
        for each in declared
    }
    missing = [each for each in declared if _is_needed(each, image) and not values[each.name]]
    return {name: value for name, value in values.items() if value}, missing


def _is_needed(option: Option, image: str) -> bool:
    return option.required or (bool(option.needed_for) and image.startswith(option.needed_for))


def refuse_missing(missing: list[Option], platform: str) -> None:
    if missing:
        first = missing[0]
        variables = f", or set {' or '.join(first.variables)}" if first.variables else ""
        raise UsageError(
            f"{platform} needs {first.name}: {first.help}", f"--{first.name.replace('_', '-')} VALUE{variables}"
        )


def start(wanted: Job, platform: Platform, registry: Registry) -> Entry:
    """Preflight, then the start, then the registry. What a step that fails had made already is ended again."""
    with _port(wanted, platform, registry) as port:
        placed = replace(wanted, host_port=port)
        platform.preflight(placed)
        entry = begun(platform.name, placed.options, placed.network_arch, port)
        try:
            entry = platform.start(placed)
            registry.add(placed.id, entry)
        except BaseException as error:
            _taken_back(placed.id, entry, platform, registry, error)
            raise
    return entry


def begun(platform: str, options: Mapping[str, str], network_arch: str = "", host_port: int = 0) -> Entry:
    """Of a start that has not returned: the job's id names whatever a platform makes for it, and this says where."""
    where = options.get("instance_id") or options.get("context") or None
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return Entry(platform, network_arch, "", started, host_port or None, None, where, options.get("namespace"))


def _taken_back(job_id: str, entry: Entry, platform: Platform, registry: Registry, error: BaseException) -> None:
    """Where that fails too, the registry keeps it: whoever stops it later has what is needed."""
    try:
        platform.stop(job_id, entry)
    except PlatformError as failed:
        with suppress(PlatformError):
            registry.add(job_id, entry)
        said = f"{error}; what it had made could not be ended: {failed}"
        raise PlatformError(said, f"platformctl microservice stop {job_id}") from error


def _port(wanted: Job, platform: Platform, registry: Registry) -> AbstractContextManager[int]:
    if platform.own_ports or platform.name in ports.ELSEWHERE:
        return ports.claimed(registry, platform.name, wanted.host_port, wanted.options.get("instance_id"))
    return nullcontext(wanted.host_port)
