"""Registry, platforms, platform flags and views shared by the verbs of `platformctl microservice`."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import routing, secrets, starting
from pilotlight.microservices.model import Entry, PlatformStatus
from pilotlight.microservices.platforms import PLATFORMS, Option, Platform, platform
from pilotlight.microservices.registry import Registry, RegistryState, registry
from platformctl import output, tensor_asking

AT_ONCE: Final = 8
HIDDEN: Final = "platform_job_id"  # internal to the platform


class RedactingGroup(click.Group):
    """Redacts secrets in errors: containers and other programs may repeat what they were given."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PlatformError as error:
            error.args = tuple(redacted(str(each)) for each in error.args)
            error.hint = redacted(error.hint)
            raise


def on_terminal() -> bool:
    """Whether the user can be prompted."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def open_registry() -> Registry:
    return registry(os.environ)


def platform_of(entry: Entry) -> Platform:
    return platform(entry.platform, os.environ)


def all_options() -> dict[str, tuple[Option, list[str]]]:
    """Return the options of all platforms by name, each with the platforms that take it."""
    options: dict[str, tuple[Option, list[str]]] = {}
    for name in PLATFORMS:
        try:
            platform_options = platform(name, os.environ).options
        except ModuleNotFoundError:
            continue
        for each in platform_options:
            options.setdefault(each.name, (each, []))[1].append(name)
    return options


def platform_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one flag per platform option to a command."""
    for name, (option, platforms) in reversed(all_options().items()):
        variables = f" [env: {', '.join(option.variables)}]" if option.variables else ""
        needed = ", needed" if option.required else ""
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar="VALUE",
            help=f"{', '.join(platforms)}{needed}: {option.help}{variables}",
        )(command)  # fmt: skip
    return command


def resolve_options(target: Platform, flags: Mapping[str, str | None], image: str = "") -> dict[str, str]:
    """Return the platform's options. Missing required ones are prompted for on a terminal, else refused."""
    typed = {name: value for name, value in flags.items() if value is not None}
    values, missing = starting.resolve_options(target.options, typed, os.environ, image)
    if not on_terminal():
        starting.check_missing(missing, target.name)
    for each in missing:
        values[each.name] = prompt(f"{each.name} ({each.help})")
    return values


def prompt(question: str) -> str:
    return str(click.prompt(question, err=True)).strip()


def select_job(state: RegistryState, job_id: str, network_arch: str) -> str:
    """Select a job by the routing rule; prompts on a terminal if several match."""
    try:
        return routing.choose(state, job_id, network_arch)
    except routing.Ambiguous as error:
        if not on_terminal():
            raise
        output.note(str(error))
        return routing.check_known(state, prompt("job id"))


def parse_variables(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE arguments."""
    parsed = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--env {name or text}, must be NAME=VALUE")
        parsed[name] = value
    return parsed


def platform_status(job_id: str, entry: Entry) -> PlatformStatus:
    """Return the platform's status; `unknown` with the cause if it cannot be queried."""
    try:
        status = platform_of(entry).status(job_id, entry)
    except (PlatformError, ModuleNotFoundError) as error:
        cause = "; ".join(filter(None, (str(error), getattr(error, "hint", ""))))
        return PlatformStatus(
            "unknown", pod_status="Unknown", reason=redacted(f"its platform cannot be asked: {cause}")
        )
    return PlatformStatus(
        status.state, status.pod_name, status.pod_status, redacted(status.reason), tuple(map(redacted, status.tail))
    )


def stop(job_id: str, entry: Entry) -> None:
    """Stop the job. If its platform refuses, the registry entry stays and the hint names --forget."""
    try:
        platform_of(entry).stop(job_id, entry)
    except PlatformError as error:
        forget = f"platformctl microservice stop {job_id} --forget only takes it off the registry"
        error.hint = "; ".join(filter(None, (error.hint, forget)))
        raise


def platform_statuses(state: RegistryState) -> dict[str, PlatformStatus]:
    """Query all platforms in parallel: a slow one does not delay the others."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(state.entries, pool.map(platform_status, state.entries, state.entries.values()), strict=True))


def redacted(text: str) -> str:
    """Replace the values of secrets."""
    return secrets.redact(text, os.environ)


def job_document(job_id: str, entry: Entry, *, tensors: bool | None = None) -> dict[str, Any]:
    """Return the job as -o json prints it."""
    from msgspec import to_builtins

    fields = {name: value for name, value in to_builtins(entry).items() if name != HIDDEN and value is not None}
    return {"job_id": job_id, **fields, "url": inference_url(entry, tensors=tensors)}


def inference_url(entry: Entry, *, tensors: bool | None = None) -> str:
    """Return the URL of chat or V2 inference; by the network's protocol if `tensors` is None."""
    from pilotlight.microservices.asking import PATH, TENSORS

    use_tensors = tensor_asking.takes_tensors(entry.network_arch) if tensors is None else tensors
    return f"{entry.host_url.rstrip('/')}{TENSORS if use_tensors else PATH}"


@contextmanager
def hints_for(job_id: str) -> Iterator[None]:
    """Add the job id to hints that name `logs`: without it they are ambiguous."""
    from pilotlight.microservices.asking import LOGS

    try:
        yield
    except PlatformError as error:
        error.hint = error.hint.replace(LOGS, f"{LOGS} {job_id}")
        raise
