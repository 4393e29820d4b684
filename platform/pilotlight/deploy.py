"""The pipeline of a deployment, from files to manifests: load, plan, render. What a target does with them comes after.

All services are planned before anything is told, so that one call names every problem of every document.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TextIO

from pilotlight.errors import InvalidDocument
from pilotlight.manifests import Manifest, in_order
from pilotlight.plan import plan
from pilotlight.plan.model import Capabilities, Current, Plan
from pilotlight.render import render
from pilotlight.spec.catalogue import builtin, catalogue_from, merge
from pilotlight.spec.cluster_catalogue import There, catalogue_there, used
from pilotlight.spec.load import Loaded, load
from pilotlight.spec.model import Catalogue, Service
from pilotlight.spec.nodes import Node
from pilotlight.spec.problems import Problem, Problems

ServiceKey = tuple[str, str]  # namespace, name
OTHER_KIND: Final = "PL110"
SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read: files, directories or `-`. `catalogues` are searched after the files, before the built-in one.

    `there` gives what the target itself has for services of some namespaces; it is searched just before the built-in.
    """

    files: Sequence[str]
    catalogues: Sequence[str] = ()
    sets: Sequence[str] = ()
    environ: Mapping[str, str] | None = None  # None: `${VAR}` stays as it is
    stdin: TextIO | None = None
    namespace: str = "default"
    there: Callable[[Sequence[str]], Sequence[There]] | None = None


@dataclass(frozen=True, slots=True)
class Documents:
    """What the sources say, before anything is decided. `others` are the documents that the catalogue was read from.

    `there` are those of them that the target keeps itself.
    """

    services: tuple[Service, ...]
    catalogue: Catalogue
    warnings: tuple[Problem, ...] = ()
    companions: tuple[Manifest, ...] = ()
    others: tuple[Node, ...] = ()
    there: tuple[Node, ...] = ()

    def beside(self, service: Service) -> list[Node]:
        """What a release keeps of the catalogue: all that was given, and what it was made with of the target's."""
        return [*self.others, *used(self.there, service, self.catalogue)]


@dataclass(frozen=True, slots=True)
class Planned:
    """Every service of the sources with what was decided about it, and the warnings of reading and planning.

    `companions` are objects beside the services (a Namespace, a Secret), which are applied first and as they are.
    """

    plans: tuple[Plan, ...]
    warnings: tuple[Problem, ...] = ()
    catalogue: Catalogue = field(default_factory=Catalogue)
    companions: tuple[Manifest, ...] = ()

    def manifests(self) -> list[Manifest]:
        """The companions, then service after service, each in the order of applying."""
        rendered = [manifest for planned in self.plans for manifest in render(planned)]
        return [*in_order(self.companions), *rendered]


def read(sources: Sources) -> Documents:
    """Raises InvalidDocument with all errors of all documents."""
    loaded = load(
        sources.files, sets=sources.sets, environ=sources.environ, stdin=sources.stdin, namespace=sources.namespace
    )
    catalogue, others, there = _catalogue(sources, loaded)
    _raise_errors(loaded.problems.found)
    companions = tuple(_companion(node, sources.namespace) for node in loaded.companions)
    return Documents(loaded.services, catalogue, tuple(loaded.problems.warnings), companions, others, there)


def _companion(node: Node, namespace: str) -> Manifest:
    """As it is written, but for the namespace of those that have one and name none."""
    document = node.plain()
    if document["kind"] != "Namespace" and not document["metadata"].get("namespace"):
        document["metadata"]["namespace"] = namespace
    return Manifest(document)


def plan_all(
    sources: Sources, capabilities: Capabilities | None = None, current: Mapping[ServiceKey, Current] | None = None
) -> Planned:
    """Raises InvalidDocument with all errors of all documents, those of planning only once reading found none."""
    return plan_documents(read(sources), capabilities, current)


def plan_documents(
    documents: Documents, capabilities: Capabilities | None = None, current: Mapping[ServiceKey, Current] | None = None
) -> Planned:
    """The same for documents that were read before: a plan can be made again when what runs has changed."""
    plans, found = _plans(documents.services, documents.catalogue, capabilities or Capabilities(), current or {})
    _raise_errors([*documents.warnings, *found])
    warnings = (*documents.warnings, *(warning for planned in plans for warning in planned.warnings))
    return Planned(tuple(plans), warnings, documents.catalogue, documents.companions)


def _catalogue(sources: Sources, loaded: Loaded) -> tuple[Catalogue, tuple[Node, ...], tuple[Node, ...]]:
    """The documents beside the services come first, then those of --catalog, of the target, ours. Problems join."""
    problems: Problems = loaded.problems
    own = catalogue_from(loaded.others, problems, sources.namespace)
    files = [file for path in sources.catalogues for file in _below(path)]
    given = load(files, environ=sources.environ, namespace=sources.namespace)
    # A catalogue is often a folder of somebody's configuration: what else lies in it is none of ours to judge.
    problems.found.extend(problem for problem in given.problems.found if problem.code != OTHER_KIND)
    theirs, there = _there(sources, loaded.services)
    found = merge(own, catalogue_from(given.others, problems, sources.namespace), theirs, builtin())
    return found, (*loaded.others, *given.others), there


def _there(sources: Sources, services: Sequence[Service]) -> tuple[Catalogue, tuple[Node, ...]]:
    if sources.there is None:
        return Catalogue(), ()
    namespaces = sorted({service.namespace for service in services}) or [sources.namespace]
    return catalogue_there(sources.there(namespaces), sources.namespace)


def _below(path: str) -> list[str]:
    """The file, or every document below the folder: catalogues are sorted by vendor and engine."""
    if not os.path.isdir(path):
        return [path]
    found = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted(file for file in found if file.endswith(SUFFIXES))


def _plans(
    services: Sequence[Service],
    catalogue: Catalogue,
    capabilities: Capabilities,
    current: Mapping[ServiceKey, Current],
) -> tuple[list[Plan], list[Problem]]:
    plans: list[Plan] = []
    found: list[Problem] = []
    for service in services:
        try:
            known = current.get((service.namespace, service.name), Current())
            plans.append(plan(service, catalogue, capabilities, known))
        except InvalidDocument as error:
            found.extend(error.problems)
    return plans, found


def _raise_errors(found: Sequence[Problem]) -> None:
    """Warnings stay with the errors: one of them may be the reason."""
    if any(problem.severity == "error" for problem in found):
        raise InvalidDocument(found)
