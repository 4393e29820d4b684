"""Documents of the catalogue that a cluster keeps itself, joined to the others: after the user's, before the built-in.

Nobody who deploys has written them, so what is wrong with one stops nobody: it is passed over, or the fields that are
unknown here are, and `explain --runtime` says so. A release keeps those that it was made with, and no others.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.spec.catalogue import catalogue_from, merge
from pilotlight.spec.catalogue_types import ACCELERATOR_KIND, WEIGHTS_KIND
from pilotlight.spec.model import Catalogue, Service
from pilotlight.spec.nodes import Node, parse
from pilotlight.spec.problems import Problems
from pilotlight.spec.select import select_runtime

Json = Any
There = tuple[str, Mapping[str, Json]]  # where it is from, as explain shows it, and the document
UNKNOWN_FIELD: Final = "PL101"


def catalogue_there(found: Iterable[There], namespace: str) -> tuple[Catalogue, tuple[Node, ...]]:
    """What can be read of them, with the nodes that it was read from."""
    catalogue, nodes = Catalogue(), []
    for origin, document in found:
        problems = Problems()
        (node,) = parse(json.dumps(document), origin, problems)
        one = catalogue_from([node], problems, namespace)
        fatal = [problem for problem in problems.errors if problem.code != UNKNOWN_FIELD]
        if fatal:
            one = Catalogue(shadowed=(f"{origin} is passed over: {_said(fatal[0].path, fatal[0].message)}",))
        else:
            unknown = tuple(f"{origin}: {problem.path} is unknown here and left out" for problem in problems.errors)
            one = replace(one, shadowed=(*one.shadowed, *unknown))
            nodes.append(node)
        catalogue = merge(catalogue, one)
    return catalogue, tuple(nodes)


def _said(path: str, message: str) -> str:
    return f"{path} {message}" if path else message


def used(nodes: Iterable[Node], service: Service, catalogue: Catalogue) -> list[Node]:
    """Those that a service's plan is made with: its runtime, its model, its weights, and all accelerators."""
    main = service.components.get("engine") or service.components.get("predictor")
    chosen = select_runtime(service, main, catalogue) if main is not None else None
    origins = {part.origin for part in (chosen.runtime, chosen.model) if part is not None} if chosen else set()
    return [node for node in nodes if node.place.file in origins or _named(node, service)]


def _named(node: Node, service: Service) -> bool:
    kind, metadata = node.text("kind"), node.get("metadata")
    name = metadata.text("name") if metadata is not None else ""
    return kind == ACCELERATOR_KIND or (kind == WEIGHTS_KIND and name == service.tuned[0])
