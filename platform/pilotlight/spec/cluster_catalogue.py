"""Catalogue documents that are installed in a cluster; they rank after the user's and before the built-in ones.

The deploying user did not write them, so their errors are not fatal: an invalid document or an unknown field is left
out, and `explain --runtime` says so. A release stores the documents that it was planned with.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.spec.catalogue import catalogue_from, merge_catalogues
from pilotlight.spec.catalogue_types import ACCELERATOR_KIND, WEIGHTS_KIND
from pilotlight.spec.model import Catalogue, Service
from pilotlight.spec.nodes import Node, parse
from pilotlight.spec.problems import Problems
from pilotlight.spec.select import select_runtime

Json = Any
ClusterDocument = tuple[str, Mapping[str, Json]]  # origin as explain shows it, document
UNKNOWN_FIELD: Final = "PL101"


def read_cluster_catalogue(documents: Iterable[ClusterDocument], namespace: str) -> tuple[Catalogue, tuple[Node, ...]]:
    """Read the valid documents into a catalogue, with the nodes they were read from."""
    catalogue, nodes = Catalogue(), []
    for origin, document in documents:
        problems = Problems()
        (node,) = parse(json.dumps(document), origin, problems)
        one = catalogue_from([node], problems, namespace)
        fatal = [problem for problem in problems.errors if problem.code != UNKNOWN_FIELD]
        if fatal:
            reason = f"{fatal[0].path} {fatal[0].message}".lstrip()
            one = Catalogue(shadowed=(f"{origin} is passed over: {reason}",))
        else:
            unknown = tuple(f"{origin}: {problem.path} is unknown here and left out" for problem in problems.errors)
            one = replace(one, shadowed=(*one.shadowed, *unknown))
            nodes.append(node)
        catalogue = merge_catalogues(catalogue, one)
    return catalogue, tuple(nodes)


def used_documents(nodes: Iterable[Node], service: Service, catalogue: Catalogue) -> list[Node]:
    """Return the nodes that a service's plan uses: its runtime, model and weights, and all accelerator classes."""
    main = service.components.get("engine") or service.components.get("predictor")
    chosen = select_runtime(service, main, catalogue) if main is not None else None
    origins = {part.origin for part in (chosen.runtime, chosen.model) if part is not None} if chosen else set()
    return [node for node in nodes if node.location.file in origins or _is_referenced(node, service)]


def _is_referenced(node: Node, service: Service) -> bool:
    kind, metadata = node.text("kind"), node.get("metadata")
    name = metadata.text("name") if metadata is not None else ""
    return kind == ACCELERATOR_KIND or (kind == WEIGHTS_KIND and name == service.fine_tuned_weight[0])
