"""Options shared by commands, each group read once into one value: documents and planning, and applying.

`@document_options`, `@planning_options` and `@deploy_options` pass `document_options: DocumentOptions`, which reads and
plans the documents; `@apply_options` passes `apply_options: ApplyOptions`. Heavy modules are imported on use.
"""

import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pilotlight.errors import NotFound
from platformctl import completion, output, targets
from platformctl.manifest_files import check_exist

if TYPE_CHECKING:
    from pilotlight.catalogue.catalogue import ClusterDocument
    from pilotlight.plan.types import Capabilities, Plan
    from pilotlight.release.plan_and_render import Documents, Planned, Sources
    from pilotlight.spec.field_types import Record
    from pilotlight.spec.problems import Problem
    from pilotlight.spec.service import Service
    from pilotlight.targets.target import Target

TIMEOUT_S: Final = 600.0
MODES: Final = ("serverless", "raw")
LEVELS: Final = ("restricted", "baseline", "privileged")
_HOST: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_REGISTRY: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*/?")
N = TypeVar("N", "Service", "Plan")


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
    host_template: str | None
    image_registry: str | None
    target: str | None
    text: str | None = None  # document that is read for the file `-`, instead of standard input
    origin: str = ""  # of that text, as errors name it

    def read_and_warn(self) -> "tuple[Documents, Capabilities]":
        """Read the documents, print their warnings, and return them with what they would be planned for."""
        from pilotlight.release.plan_and_render import read

        target = self._connect()
        documents = read(self._sources(target))
        warn(documents.problems, self.strict)
        return documents, self.target_capabilities(target, complete=False)

    def read(self, target: "Target | None" = None) -> "Documents":
        """Read the documents without printing: planning reports their problems with its own."""
        from pilotlight.release.plan_and_render import read

        return read(self._sources(target), partly=True)

    def plan(
        self, *, for_cluster: bool = False, find_models: bool = False,
        pin: "Callable[[Documents, Capabilities], Documents] | None" = None,
    ) -> "Planned":  # fmt: skip
        """Plan all services and return the selected ones; warnings are printed, or raised with --strict.

        `for_cluster`: the result is for `kubectl` or Helm, so local paths are warned of unless a target is named.
        `find_models`: models of this machine that are missing, and those that replicas would refuse, are errors.
        `pin` gives the documents the pins that `deploy` would give them, on which their revisions depend.
        """
        from pilotlight.release.apply import check_paths_reachable, missing_models
        from pilotlight.release.current_state import current_of
        from pilotlight.release.plan_and_render import plan_documents
        from platformctl.manifest_files import manifests

        target = self._connect()
        current = current_of(manifests([self.current])) if self.current else {}
        documents = self.read(target)
        check_paths_reachable(documents.services, target)
        if for_cluster and self.target == targets.CLUSTER:
            note_unreachable(documents.services)
        capabilities = self.target_capabilities(target, complete=False)
        if find_models or pin is not None:
            from pilotlight.release.model_pins import check_models, without_pins

            documents, here = without_pins(documents), self.target in targets.EMBEDDED
        if find_models:
            missing = missing_models(documents.services, here=here)
            documents = replace(documents, problems=(*documents.problems, *missing))
            check_models(documents, capabilities, here=here, note=lambda text: output.note(f"note: {text}"))
        if pin is not None:
            documents = pin(documents, capabilities)
        planned = plan_documents(documents, capabilities, current)
        targets.options_of(self.target_name, complete=True)  # after errors of the documents
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

    @property
    def target_name(self) -> str:
        return "kubernetes" if self.target == targets.CLUSTER else self.target or targets.LOCAL

    def _connect(self) -> "Target | None":
        """Connect to the target to plan for; those of the embedded platform have no catalogue of their own."""
        if not self.target or self.target in (targets.CLUSTER, *targets.EMBEDDED):
            return None
        try:
            return targets.connect(self.target)
        except NotFound as error:
            if self.target == "kubernetes":
                error.hint += "; to plan for a cluster without a connection: --target cluster"
            raise

    def _sources(self, target: "Target | None") -> "Sources":
        from pilotlight.release.plan_and_render import Sources

        check_exist((*self.files, *self.catalog))
        environ: Mapping[str, str] | None = os.environ if self.env else None
        catalogue = partial(_read_catalogue, target) if target is not None else None
        stdin = output.stdin()
        if self.text:
            stdin = io.StringIO(self.text)
            stdin.name = self.origin
        return Sources(self.files, self.catalog, self.sets, environ, stdin, self.namespace, catalogue)

    def target_capabilities(
        self, target: "Target | None", released: Mapping[str, str] | None = None, *, complete: bool = True
    ) -> "Capabilities":
        """Merge the capabilities that the target reports, the file and the flags; later ones win.

        `released` are the target options of the service as it runs; `complete`: raise UsageError for missing ones.
        """
        from pilotlight.plan.types import Capabilities
        from pilotlight.targets.local.capabilities import capabilities_of
        from pilotlight.targets.local.installed_engines import installed_engines

        name = self.target_name
        target_options = targets.options_of(name, complete=complete, released=released)
        reported = target.capabilities() if target else {}
        if name in targets.EMBEDDED:  # known without its control process
            engines = {"engines": installed_engines(os.environ)} if name == targets.LOCAL else {}
            reported = {**engines, **reported, **capabilities_of(name, target_options)}
        elif target is None and self.target != targets.CLUSTER:
            reported = {"target": name, "target_options": target_options}
        elif target_options:
            reported = {**reported, "target_options": target_options}
        from_file = read_capabilities(self.capabilities) if self.capabilities else {}
        flags = {"default_mode": self.default_mode, "pod_security": self.pod_security}
        flags |= {"host_template": self.host_template, "image_registry": self.image_registry}
        flags_set = {name: value for name, value in flags.items() if value}
        return replace(Capabilities(), **{**reported, **from_file, **flags_set})


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """Values of --wait, --timeout, --dry-run and --diff."""

    wait: bool
    timeout: float
    dry_run: str | None
    diff: bool


def _read_catalogue(target: "Target", namespaces: Sequence[str]) -> "Sequence[ClusterDocument]":
    """Return the target's own catalogue; its remarks are printed."""
    documents, remarks = target.catalogue(namespaces)
    for sentence in remarks:
        output.note(sentence)
    return documents


def warn(warnings: "Sequence[Problem]", strict: bool) -> None:
    """Print numbered warnings on stderr; with --strict raise them as errors."""
    if strict and warnings:
        from pilotlight.spec.problems import InvalidDocument

        raise InvalidDocument([warning._replace(severity="error") for warning in warnings])
    output.problems(warnings)


def note_unreachable(services: "Sequence[Service]") -> None:
    """Print a warning for each path of this machine in documents for a cluster."""
    from pilotlight.release.apply import unreachable_paths

    for unreachable in unreachable_paths(services):
        output.note(f"warning: {unreachable}; {unreachable.hint}")


def _files(*, required: bool) -> targets.Decorator:
    return click.option(
        "-f", "--file", "files", multiple=True, required=required, type=click.Path(), metavar="FILE",
        help="File, directory or -; repeatable.",
    )  # fmt: skip


def _names(metavar: str = "[NAME]...") -> targets.Decorator:
    return click.argument("names", metavar=metavar, nargs=-1, shell_complete=completion.services)


FILES, REQUIRED_FILES = _files(required=False), _files(required=True)
NAMES = _names()
CATALOG = click.option(
    "--catalog", multiple=True, type=click.Path(), envvar="PILOTLIGHT_CATALOG", metavar="PATH",
    help="File or directory with runtimes, models and accelerators; repeatable. [env: PILOTLIGHT_CATALOG]",
)  # fmt: skip
ENV = click.option("--env", is_flag=True, help="Substitute ${VARIABLE} and ${VARIABLE:-default} from the environment.")
_READING = (
    click.option(
        "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Set a field: spec.engine.minReplicas=0; repeatable."
    ),
    ENV,
    CATALOG,
    click.option(
        "-n", "--namespace", default="default", show_default=True, envvar="PILOTLIGHT_NAMESPACE",
        shell_complete=completion.namespaces, help="Namespace of documents without one.",
    ),
    click.option("--strict", is_flag=True, help="Treat warnings as errors."),
)  # fmt: skip
_CURRENT = click.option(
    "--current", type=click.Path(), metavar="FILE", help="Live objects, for canaries: output of kubectl get -o yaml."
)


def host_template(text: str | None) -> str | None:
    """Return a template of hosts. Raise BadParameter unless it has the service's name and makes a host name."""
    from pilotlight.k8s import names

    if text and ("{name}" not in text or not _HOST.fullmatch(names.host(text, "a", "b", "example.com"))):
        raise click.BadParameter("must be a host name with {name}, {namespace} and {domain}")
    return text


def image_registry(text: str | None) -> str | None:
    """Return a registry without a slash at its end. Raise BadParameter for a URL or a whole image."""
    if text and not _REGISTRY.fullmatch(text):
        raise click.BadParameter("must be a registry such as registry.example.com:5000/team, without https:// or a tag")
    return text.rstrip("/") if text else text


HOST_TEMPLATE = click.option(
    "--host-template", metavar="TEXT", callback=lambda _, __, value: host_template(value),
    help="Public host of a service (default: {name}.{namespace}.{domain}).",
)  # fmt: skip
_IMAGE_REGISTRY = click.option(
    "--image-registry", metavar="REGISTRY", envvar="PILOTLIGHT_IMAGE_REGISTRY",
    callback=lambda _, __, value: image_registry(value),
    help="Registry with our images: registry.example.com/team. [env: PILOTLIGHT_IMAGE_REGISTRY]",
)  # fmt: skip
_PLANNING = (
    click.option(
        "--default-mode", type=click.Choice(MODES), help="Mode of KServe documents without one (default: serverless)."
    ),
    click.option(
        "--capabilities", type=click.Path(), metavar="FILE", help="What the cluster offers; see docs/reference/cli.md."
    ),
    click.option("--pod-security", type=click.Choice(LEVELS), help="Pod Security level of every pod."),
    HOST_TEMPLATE,
    _IMAGE_REGISTRY,
)


_WAITING = (
    click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is done."),
    click.option("--timeout", default=TIMEOUT_S, show_default=True, metavar="SECONDS", help="How long to wait."),
)
_APPLYING = (
    *_WAITING,
    click.option(
        "--dry-run", type=click.Choice(["client", "server"]), is_flag=False, flag_value="client",
        help="Change nothing: plan here (client), or let the target check it too (server).",
    ),
    click.option("--diff", is_flag=True, help="Show changed fields and manifests."),
)  # fmt: skip
_DOCUMENTS = (NAMES, REQUIRED_FILES, *_READING, _CURRENT, *_PLANNING)


def _planning(target: str, *documents: targets.Decorator) -> targets.Decorator:
    meaning = "Where it would run: a target of deploy, or cluster: any one, without a connection."
    flags = (targets.target_flag(target, meaning, targets.CLUSTER), targets.context_option, targets.TARGET_OPTION)
    return targets.option_group("document_options", DocumentOptions, (*flags, *documents))


document_options: Final = targets.option_group("document_options", DocumentOptions, _DOCUMENTS)
# With --target, whose catalogue and capabilities are used for planning: of what deploy would do, or for a cluster.
planning_options: Final = _planning(targets.LOCAL, *_DOCUMENTS)
cluster_options: Final = _planning(targets.CLUSTER, *_DOCUMENTS)
explain_options: Final = _planning(targets.LOCAL, _names("[NAME|CODE]..."), FILES, *_READING, _CURRENT, *_PLANNING)
# Of commands that apply to a target and may take its stored documents instead of files.
deploy_options: Final = targets.option_group(
    "document_options", DocumentOptions, (FILES, *_READING, *_PLANNING, *targets.TARGET, targets.TARGET_OPTION)
)
apply_options: Final = targets.option_group("apply_options", ApplyOptions, _APPLYING)


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --wait and --timeout to a command."""
    return targets.add_options(command, _WAITING)


def read_capabilities(file: str) -> dict[str, Any]:
    """Return the file's values by field name. Raises InvalidDocument with all its problems."""
    from pilotlight.spec.field_types import read
    from pilotlight.spec.problems import InvalidDocument, Problems, SourceLocation
    from pilotlight.spec.yaml_nodes import parse

    check_exist([file])
    problems = Problems()
    nodes = parse(Path(file).read_text(encoding="utf-8", errors="replace"), file, problems)
    if len(nodes) > 1:
        problems.error("PL112", nodes[1].location, "", "is a second document; capabilities are one")
    fields_read = read(nodes[0], record(), problems) if nodes else {}
    if not nodes and not problems.errors:
        problems.error("PL112", SourceLocation(file), "", "holds no document")
    if problems.errors:
        raise InvalidDocument(problems.errors)
    names = {spelled: name for name, spelled in _field_names().items()}
    values = {names[name]: value for name, value in fields_read.items()}
    return {**values, "features": frozenset(values["features"])} if "features" in values else values


def record() -> "Record":
    """Return the type of the capabilities file, whose fields are those of Capabilities in camel case (`httpAddOn`)."""
    from pilotlight.plan.types import Capabilities
    from pilotlight.spec.field_types import Boolean, Field, Integer, ListOf, MapOf, OneOf, Record, String, Type

    plain = Capabilities()
    special: dict[str, Type] = {
        "default_mode": OneOf(MODES), "pod_security": OneOf(LEVELS), "features": ListOf(String()),
        "route_parent": MapOf(String()), "gpus": Integer(0), "load_rate_bytes_s": Integer(1),
        "gpus_total": Integer(0), "gpu_memory": Integer(0),
    }  # fmt: skip
    types: dict[str, Type] = {
        name: special.get(name) or (Boolean() if isinstance(getattr(plain, name), bool) else String())
        for name in _field_names()
    }
    return Record("capabilities", {spelled: Field(types[name]) for name, spelled in _field_names().items()})


def _field_names() -> dict[str, str]:
    """Map field names of Capabilities to their names in the file, without those that command line or target say."""
    from pilotlight.plan.types import Capabilities

    names = (field.name for field in fields(Capabilities) if field.name not in ("target", "target_options", "engines"))
    return {name: re.sub(r"_(.)", lambda match: match[1].upper(), name) for name in names}
