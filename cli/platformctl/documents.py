"""Options of the verbs that read documents, and the steps from options to plans.

`@documents.document_options` passes one argument to a command, `document_options: DocumentOptions`. Heavy modules are
imported on use.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from pilotlight.errors import NotFound
from platformctl import output, targets

if TYPE_CHECKING:
    from pilotlight.deploy import Documents, Planned, Sources
    from pilotlight.plan.model import Capabilities
    from pilotlight.spec.cluster_catalogue import ClusterDocument
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
class DocumentOptions:
    """Values of the common options."""

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
    target_name: str | None  # the target to plan for; the local one reports no capabilities

    def read_and_warn(self) -> "Documents":
        """Read the documents and print their warnings."""
        documents = self.read(self._connect())
        warn(documents.warnings, self.strict)
        return documents

    def read(self, target: "Target | None" = None) -> "Documents":
        """Read the documents without printing: planning reports their warnings with its own."""
        from pilotlight.deploy import read

        return read(self._sources(target))

    def plan(self) -> "Planned":
        """Plan all services and return the selected ones; warnings are printed, or raised with --strict."""
        from dataclasses import replace

        from pilotlight.deploy import plan_all
        from pilotlight.running import current_of
        from platformctl.manifest_files import manifests

        target = self._connect()
        current = current_of(manifests([self.current])) if self.current else {}
        planned = plan_all(self._sources(target), self.target_capabilities(target), current)
        warn(planned.warnings, self.strict)
        return replace(planned, plans=tuple(self.select(planned.plans)))

    def select(self, services: Iterable[N]) -> list[N]:
        """Return the services given by `name` or `namespace/name`; all if none was given."""
        candidates = list(services)
        known = {text for service in candidates for text in (service.name, f"{service.namespace}/{service.name}")}
        unknown = [name for name in self.names if name not in known]
        if unknown:
            there = ", ".join(service.name for service in candidates) or "none"
            raise NotFound(f"no service is called {', '.join(unknown)}; the documents have {there}")
        names = set(self.names)
        return [
            service
            for service in candidates
            if not names or {service.name, f"{service.namespace}/{service.name}"} & names
        ]

    def _connect(self) -> "Target | None":
        return targets.connect(self.target_name) if self.target_name and self.target_name != targets.LOCAL else None

    def _sources(self, target: "Target | None") -> "Sources":
        from pilotlight.deploy import Sources
        from platformctl.manifest_files import check_exist

        check_exist((*self.files, *self.catalog))
        environ: Mapping[str, str] | None = os.environ if self.env else None
        catalogue = _target_catalogue(target) if target is not None else None
        return Sources(self.files, self.catalog, self.sets, environ, sys.stdin, self.namespace, catalogue)

    def target_capabilities(self, target: "Target | None" = None) -> "Capabilities":
        from platformctl.capabilities import capabilities

        reported = target.capabilities() if target else {}
        return capabilities(self.capabilities, self.default_mode, self.pod_security, reported)


def _target_catalogue(target: "Target") -> "Callable[[Sequence[str]], Sequence[ClusterDocument]]":
    """Return a reader of the target's own catalogue; its remarks are printed."""

    def read_catalogue(namespaces: Sequence[str]) -> "Sequence[ClusterDocument]":
        documents, remarks = target.catalogue(namespaces)
        for sentence in remarks:
            output.note(sentence)
        return documents

    return read_catalogue


def warn(warnings: "Sequence[Problem]", strict: bool) -> None:
    """Print numbered warnings on stderr; with --strict raise them as errors."""
    if strict and warnings:
        from pilotlight.spec.problems import InvalidDocument

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


def document_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to a command, passed as `document_options`."""
    return _with_options(command, (_NAMES, _files(required=True), *_READING, _CURRENT, *_PLANNING))


def planning_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options and --target, whose catalogue and capabilities are used for planning."""
    decorated = document_options(command)

    @wraps(decorated)
    def called(target: str, **typed: Any) -> Any:
        return decorated(target_name=target, **typed)

    return targets.target_option(called)


def deploy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of verbs that apply to a target and may take its stored documents instead of files."""
    return _with_options(command, (_NAMES, _files(required=False), *_READING, *_PLANNING))


def _with_options(command: Callable[..., Any], added: Sequence[Decorator]) -> Callable[..., Any]:
    @wraps(command)
    def called(**typed: Any) -> Any:
        own = {field.name: typed.pop(field.name, None) for field in fields(DocumentOptions)}
        return command(document_options=DocumentOptions(**own), **typed)

    decorated: Callable[..., Any] = called
    for option in reversed(added):
        decorated = option(decorated)
    return decorated
