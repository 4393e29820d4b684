"""What the verbs of `platformctl microservice` share: registry, platforms with their options as flags, views."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import routing, secrets, starting
from pilotlight.microservices.model import Entry, Seen
from pilotlight.microservices.platforms import PLATFORMS, Option, Platform, platform
from pilotlight.microservices.registry import Registry, State, registry
from platformctl import output, tensor_asking

AT_ONCE: Final = 8
HIDDEN: Final = "platform_job_id"  # for platforms, not for people


class Verbs(click.Group):
    """Whatever goes wrong is told without the values of secrets: containers and other programs repeat what they got."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PlatformError as error:
            error.args = tuple(shown(str(each)) for each in error.args)
            error.hint = shown(error.hint)
            raise


def on_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def opened() -> Registry:
    return registry(os.environ)


def reached(entry: Entry) -> Platform:
    return platform(entry.platform, os.environ)


def every_option() -> dict[str, tuple[Option, list[str]]]:
    """Options of all platforms by name, each with the platforms that take it."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for name in PLATFORMS:
        try:
            taken = platform(name, os.environ).options
        except ModuleNotFoundError:
            continue
        for each in taken:
            found.setdefault(each.name, (each, []))[1].append(name)
    return found


def platform_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """One flag for each option, handed over by the option's name."""
    for name, (option, platforms) in reversed(every_option().items()):
        variables = f" [env: {', '.join(option.variables)}]" if option.variables else ""
        needed = ", needed" if option.required else ""
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar="VALUE",
            help=f"{', '.join(platforms)}{needed}: {option.help}{variables}",
        )(command)  # fmt: skip
    return command


def options_of(place: Platform, given: Mapping[str, str | None], image: str = "") -> dict[str, str]:
    """What the platform takes. What it needs and nobody gave is asked for on a terminal, and refused elsewhere."""
    typed = {name: value for name, value in given.items() if value is not None}
    values, missing = starting.options(place.options, typed, os.environ, image)
    if not on_terminal():
        starting.refuse_missing(missing, place.name)
    for each in missing:
        values[each.name] = asked(f"{each.name} ({each.help})")
    return values


def asked(question: str) -> str:
    return str(click.prompt(question, err=True)).strip()


def chosen(state: State, job_id: str, network_arch: str) -> str:
    """By the routing rule; on a terminal a person chooses among several, and there is no default."""
    try:
        return routing.choose(state, job_id, network_arch)
    except routing.Ambiguous as error:
        if not on_terminal():
            raise
        output.note(str(error))
        return routing.known(state, asked("job id"))


def variables(texts: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE, as typed."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--env {name or text}, must be NAME=VALUE")
        found[name] = value
    return found


def looked_at(job_id: str, entry: Entry) -> Seen:
    """What its platform says; one that cannot be asked is no reason to show nothing."""
    try:
        seen = reached(entry).look(job_id, entry)
    except (PlatformError, ModuleNotFoundError) as error:
        told = "; ".join(filter(None, (str(error), getattr(error, "hint", ""))))
        return Seen("unknown", pod_status="Unknown", reason=shown(f"its platform cannot be asked: {told}"))
    return Seen(seen.state, seen.pod_name, seen.pod_status, shown(seen.reason), tuple(map(shown, seen.tail)))


def stop(job_id: str, entry: Entry) -> None:
    """Where its platform refuses, the entry stays; how to be rid of it is told too."""
    try:
        reached(entry).stop(job_id, entry)
    except PlatformError as error:
        forget = f"platformctl microservice stop {job_id} --forget only takes it off the registry"
        error.hint = "; ".join(filter(None, (error.hint, forget)))
        raise


def all_looked_at(state: State) -> dict[str, Seen]:
    """At once: a platform that does not answer holds up none of the others."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(state.entries, pool.map(looked_at, state.entries, state.entries.values()), strict=True))


def shown(text: str) -> str:
    """Whatever others wrote, without the values of secrets."""
    return secrets.redacted(text, os.environ)


def document(job_id: str, entry: Entry, *, tensors: bool | None = None) -> dict[str, Any]:
    """As -o json prints it."""
    from msgspec import to_builtins

    told = {name: value for name, value in to_builtins(entry).items() if name != HIDDEN and value is not None}
    return {"job_id": job_id, **told, "url": address(entry, tensors=tensors)}


def address(entry: Entry, *, tensors: bool | None = None) -> str:
    """Where it is asked: by chat, or by V2's tensors, which the network tells where nothing else has told it."""
    from pilotlight.microservices.asking import PATH, TENSORS

    by_tensors = tensor_asking.by_tensors(entry.network_arch) if tensors is None else tensors
    return f"{entry.host_url.rstrip('/')}{TENSORS if by_tensors else PATH}"


@contextmanager
def hints_for(job_id: str) -> Iterator[None]:
    """Several may run: a hint that leaves open which one is meant would be refused."""
    from pilotlight.microservices.asking import LOGS

    try:
        yield
    except PlatformError as error:
        error.hint = error.hint.replace(LOGS, f"{LOGS} {job_id}")
        raise
