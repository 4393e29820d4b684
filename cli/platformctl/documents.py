"""What verbs that read documents have in common: their options, and the way from those to plans.

`@documents.options` gives a verb one argument, `given: Given`. Heavy modules are imported when something is read.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from pilotlight.errors import NotFound
from platformctl import output, targets

if TYPE_CHECKING:
    from pilotlight.deploy import Documents, Planned, Sources
    from pilotlight.plan.model import Capabilities, Current
    from pilotlight.spec.cluster_catalogue import There
    from pilotlight.spec.problems import Problem
    from pilotlight.targets.target import Target


class Named(Protocol):
    """A service or its plan."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True, slots=True)
class Given:
    """The common options as they were typed."""

    names: tuple[str, ...]
    files: tuple[str, ...]
    sets: tuple[str, ...]
    env: bool
    catalog: tuple[str, ...]
    namespace: str
    strict: bool
    current: str | None
    default_mode: str | None
    capabilities: str | None
    pod_security: str | None
    there: str | None  # the target that these are planned for; the local one has nothing to tell

    def documents(self) -> "Documents":
        """The documents read and nothing decided; their warnings are printed."""
        documents = self.read(self._where())
        warn(documents.warnings, self.strict)
        return documents

    def read(self, target: "Target | None" = None) -> "Documents":
        """The same without a word: whoever plans them has their warnings with those of planning."""
        from pilotlight.deploy import read

        return read(self._sources(target))

    def plan(self) -> "Planned":
        """Everything planned; the warnings are printed, or raised with --strict. Only the services that are named."""
        from dataclasses import replace

        from pilotlight.deploy import plan_all

        where = self._where()
        planned = plan_all(self._sources(where), self.offered(where), self._current())
        warn(planned.warnings, self.strict)
        return replace(planned, plans=tuple(self.only(planned.plans)))

    def only(self, services: Iterable[N]) -> list[N]:
        """Those whose `name` or `namespace/name` was given; all where none was."""
        found = list(services)
        known = {text for service in found for text in (service.name, f"{service.namespace}/{service.name}")}
        unknown = [name for name in self.names if name not in known]
        if unknown:
            there = ", ".join(service.name for service in found) or "none"
            raise NotFound(f"no service is called {', '.join(unknown)}; the documents have {there}")
        wanted = set(self.names)
        return [
            service for service in found if not wanted or {service.name, f"{service.namespace}/{service.name}"} & wanted
        ]

    def _where(self) -> "Target | None":
        return targets.connect(self.there) if self.there and self.there != targets.LOCAL else None

    def _sources(self, target: "Target | None") -> "Sources":
        from pilotlight.deploy import Sources

        existing((*self.files, *self.catalog))
        environ: Mapping[str, str] | None = os.environ if self.env else None
        there = _told(target) if target is not None else None
        return Sources(self.files, self.catalog, self.sets, environ, sys.stdin, self.namespace, there)

    def offered(self, target: "Target | None" = None) -> "Capabilities":
        from platformctl.capabilities import capabilities

        offers = target.offers() if target else {}
        return capabilities(self.capabilities, self.default_mode, self.pod_security, offers)

    def _current(self) -> "Mapping[tuple[str, str], Current]":
        from pilotlight.running import current_of
        from platformctl.manifest_files import manifests

        return current_of(manifests([self.current])) if self.current else {}


def _told(target: "Target") -> "Callable[[Sequence[str]], Sequence[There]]":
    """What the target has of the catalogue; what it will not show is said."""

    def there(namespaces: Sequence[str]) -> "Sequence[There]":
        found, remarks = target.catalogue(namespaces)
        for sentence in remarks:
            output.note(sentence)
        return found

    return there


def existing(files: Sequence[str]) -> None:
    """All that is missing at once. `-` is standard input."""
    missing = [name for name in files if name != "-" and not Path(name).exists()]
    if missing:
        raise NotFound(f"no such file or directory: {', '.join(missing)}")


def warn(warnings: "Sequence[Problem]", strict: bool) -> None:
    """Numbered on stderr; with --strict each of them is an error."""
    if strict and warnings:
        from pilotlight.errors import InvalidDocument

        raise InvalidDocument([warning._replace(severity="error") for warning in warnings])
    output.problems(warnings)


def _files(*, required: bool) -> "Decorator":
    return click.option(
        "-f", "--file", "files", multiple=True, required=required, metavar="FILE",
        help="File, directory or -; repeatable.",
    )  # fmt: skip


_NAMES = click.argument("names", metavar="[NAME]...", nargs=-1)
CATALOG = click.option(
    "--catalog", multiple=True, type=click.Path(), envvar="PILOTLIGHT_CATALOG", metavar="PATH",
    help="Runtimes, models and accelerators: file or directory; repeatable. [env: PILOTLIGHT_CATALOG]",
)  # fmt: skip
_READING = (
    click.option(
        "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change every service: spec.engine.minReplicas=0."
    ),
    click.option("--env", is_flag=True, help="Fill in ${VARIABLE} and ${VARIABLE:-default} from the environment."),
    CATALOG,
    click.option(
        "-n", "--namespace", default="default", show_default=True, envvar="PILOTLIGHT_NAMESPACE",
        help="For documents that name none.",
    ),
    click.option("--strict", is_flag=True, help="Warnings are errors."),
)  # fmt: skip
_CURRENT = click.option(
    "--current", metavar="FILE", help="Objects as they run, for canaries; also kubectl get -o yaml."
)
_PLANNING = (
    click.option(
        "--default-mode", type=click.Choice(["serverless", "raw"]),
        help="For KServe documents that name none; serverless unless told.",
    ),
    click.option("--capabilities", metavar="FILE", help="What the cluster has; see docs/cli.md."),
    click.option(
        "--pod-security", type=click.Choice(["restricted", "baseline", "privileged"]),
        help="Force this level on every pod.",
    ),
)  # fmt: skip


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The common options on a verb, handed over as one `given`."""
    return _given(command, (_NAMES, _files(required=True), *_READING, _CURRENT, *_PLANNING))


def planning(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same with --target: what it has is chosen from, what it offers is planned for."""
    made = options(command)

    @wraps(made)
    def called(target: str, **typed: Any) -> Any:
        return made(there=target, **typed)

    return targets.target_option(called)


def deploying(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a verb that asks a target what runs, and that may take documents which the target keeps."""
    return _given(command, (_NAMES, _files(required=False), *_READING, *_PLANNING))


def _given(command: Callable[..., Any], added: Sequence[Decorator]) -> Callable[..., Any]:
    @wraps(command)
    def called(**typed: Any) -> Any:
        own = {field.name: typed.pop(field.name, None) for field in fields(Given)}
        return command(given=Given(**own), **typed)

    made: Callable[..., Any] = called
    for option in reversed(added):
        made = option(made)
    return made
