"""Deployment pipeline from files to manifests: load, plan, render. Targets apply the result.

All services are planned before any problem is raised, so that one call reports every problem of every document.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from pilotlight.catalogue.adapter_files import with_folders
from pilotlight.catalogue.catalogue import (
    ClusterDocument,
    builtin,
    catalogue_from,
    merge_catalogues,
    read_cluster_catalogue,
    used_documents,
)
from pilotlight.k8s.manifest import Manifest, in_apply_order
from pilotlight.plan import plan
from pilotlight.plan.types import Capabilities, Current, Plan
from pilotlight.render import render
from pilotlight.spec.load_documents import SUFFIXES, LoadedDocuments, load
from pilotlight.spec.problems import InvalidDocument, Problem, Problems
from pilotlight.spec.service import Catalogue, Service
from pilotlight.spec.yaml_nodes import Node

ServiceKey = tuple[str, str]  # namespace, name
OTHER_KIND: Final = "PL110"


@dataclass(frozen=True, slots=True)
class Sources:
    """Inputs: files, directories or `-`, or `objects` of a cluster. `catalogues` are searched after the files, before
    the built-in one.

    `target_catalogue` returns the target's own catalogue for some namespaces; it is searched just before the built-in
    one.
    """

    files: Sequence[str]
    catalogues: Sequence[str] = ()
    sets: Sequence[str] = ()
    environ: Mapping[str, str] | None = None  # None: `${VAR}` stays as it is
    stdin: TextIO | None = None
    namespace: str = "default"
    target_catalogue: Callable[[Sequence[str]], Sequence[ClusterDocument]] | None = None
    objects: Sequence[Node] = ()


@dataclass(frozen=True, slots=True)
class Documents:
    """Parsed services and catalogue. `catalogue_nodes` are the documents of the catalogue's files.

    `target_nodes` are those that the target stores itself. `problems` are the warnings of reading, and its errors if
    it was `partly`; services that are `unreadable` by them are not planned.
    """

    services: tuple[Service, ...]
    catalogue: Catalogue
    problems: tuple[Problem, ...] = ()
    companions: tuple[Manifest, ...] = ()
    catalogue_nodes: tuple[Node, ...] = ()
    target_nodes: tuple[Node, ...] = ()
    unreadable: frozenset[ServiceKey] = frozenset()

    def documents_with(self, service: Service) -> list[Node]:
        """Return the catalogue documents to store with a release: all from files, and those used from the target."""
        return [*self.catalogue_nodes, *used_documents(self.target_nodes, service, self.catalogue)]


@dataclass(frozen=True, slots=True)
class Planned:
    """Plans of all services, and the warnings of reading and planning.

    `companions` are other objects of the documents (a Namespace, a Secret), applied first and unchanged.
    """

    plans: tuple[Plan, ...]
    warnings: tuple[Problem, ...] = ()
    companions: tuple[Manifest, ...] = ()

    def manifests(self) -> list[Manifest]:
        """Return the companions, then the objects of each service in apply order."""
        rendered = [manifest for planned in self.plans for manifest in render(planned)]
        return [*in_apply_order(self.companions), *rendered]


def read(sources: Sources, *, partly: bool = False) -> Documents:
    """Read all documents. Raises InvalidDocument with all their errors; `partly`: planning raises them with its own."""
    loaded = load(
        sources.files, sets=sources.sets, environ=sources.environ, stdin=sources.stdin, namespace=sources.namespace,
        objects=sources.objects,
    )  # fmt: skip
    errors = len(loaded.problems.errors)
    catalogue, catalogue_nodes, target_nodes = _catalogue(sources, loaded)
    catalogue = with_folders(catalogue, loaded.services)
    problems = tuple(loaded.problems.items)
    if not partly or len(loaded.problems.errors) > errors:  # without its catalogue no service can be planned
        _raise_errors(problems)
    companions = tuple(Manifest(node.plain()) for node in loaded.companions)
    for companion in companions:
        metadata = companion.document["metadata"]
        if companion.kind != "Namespace" and not metadata.get("namespace"):
            metadata["namespace"] = sources.namespace
    return Documents(loaded.services, catalogue, problems, companions, catalogue_nodes, target_nodes, loaded.unreadable)


def plan_all(
    sources: Sources, capabilities: Capabilities | None = None, current: Mapping[ServiceKey, Current] | None = None
) -> Planned:
    """Read and plan. Raises InvalidDocument with all errors."""
    return plan_documents(read(sources, partly=True), capabilities, current)


def plan_documents(
    documents: Documents, capabilities: Capabilities | None = None, current: Mapping[ServiceKey, Current] | None = None
) -> Planned:
    """Plan documents that were read before, such as again after the live state has changed."""
    plans: list[Plan] = []
    problems: list[Problem] = []
    for service in documents.services:
        if (key := (service.namespace, service.name)) in documents.unreadable:
            continue
        try:
            live = (current or {}).get(key, Current())
            plans.append(plan(service, documents.catalogue, capabilities or Capabilities(), live))
        except InvalidDocument as error:
            problems.extend(error.problems)
    _raise_errors([*documents.problems, *problems])
    warnings = (*documents.problems, *(warning for planned in plans for warning in planned.warnings))
    return Planned(tuple(plans), warnings, documents.companions)


def _catalogue(sources: Sources, loaded: LoadedDocuments) -> tuple[Catalogue, tuple[Node, ...], tuple[Node, ...]]:
    """Merge catalogues by precedence: the documents, --catalog, the target, the built-in one."""
    problems: Problems = loaded.problems
    own = catalogue_from(loaded.catalogue_nodes, problems, sources.namespace)
    files = [file for path in sources.catalogues for file in _files_below(path)]
    added = load(files, environ=sources.environ, namespace=sources.namespace)
    # A catalogue is often a folder of configuration: other kinds in it are not reported.
    problems.items.extend(problem for problem in added.problems.items if problem.code != OTHER_KIND)
    from_files = catalogue_from(added.catalogue_nodes, problems, sources.namespace)
    namespaces = sorted({service.namespace for service in loaded.services}) or [sources.namespace]
    installed = sources.target_catalogue(namespaces) if sources.target_catalogue is not None else ()
    from_target, target_nodes = read_cluster_catalogue(installed, sources.namespace)
    catalogue = merge_catalogues(own, from_files, from_target, builtin())
    return catalogue, (*loaded.catalogue_nodes, *added.catalogue_nodes), target_nodes


def _files_below(path: str) -> list[str]:
    """Return the file, or all documents below the folder: catalogues are sorted by vendor and engine."""
    if not os.path.isdir(path):
        return [path]
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted(file for file in paths if file.endswith(SUFFIXES))


def _raise_errors(problems: Sequence[Problem]) -> None:
    """Raise InvalidDocument if there is an error, with the warnings: one of them may be the cause."""
    if any(problem.severity == "error" for problem in problems):
        raise InvalidDocument(problems)
