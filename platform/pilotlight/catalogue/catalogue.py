"""The catalogue that a plan chooses from, merged from several sources; the first source wins.

the service's own files → `--catalog` and PILOTLIGHT_CATALOG → the cluster's → built-in (data in this folder)
"""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from pilotlight.catalogue.document_types import (
    ACCELERATOR_KIND,
    CACHE_KINDS,
    KSERVE_VERSION,
    MODEL_KINDS,
    OME_VERSION,
    RUNTIME_KINDS,
    RUNTIME_VERSIONS,
    TYPES,
    WEIGHTS_KIND,
)
from pilotlight.catalogue.model_documents import matching_cache, model_from, read_model
from pilotlight.catalogue.runtime_documents import read_runtime, runtime_from
from pilotlight.catalogue.runtime_selection import select_runtime
from pilotlight.spec.field_types import read
from pilotlight.spec.problems import UNKNOWN_FIELD, Problems
from pilotlight.spec.service import BaseModel, Catalogue, Runtime, Service
from pilotlight.spec.yaml_nodes import Node, parse

Json = Any
Item = TypeVar("Item")
ClusterDocument = tuple[str, Mapping[str, Json]]  # origin as explain shows it, document
KINDS: Final = (*RUNTIME_KINDS, *MODEL_KINDS, ACCELERATOR_KIND, WEIGHTS_KIND, *CACHE_KINDS)
BUILT_IN: Final = "built-in"
# Kinds that stay plain documents: only a few of their fields are used.
_PLAIN: Final = (ACCELERATOR_KIND, WEIGHTS_KIND, *CACHE_KINDS)


def catalogue_from(nodes: Iterable[Node], problems: Problems, namespace: str = "default") -> Catalogue:
    """Read the catalogue documents among the nodes; skip other kinds."""
    runtimes: list[Runtime] = []
    models: list[BaseModel] = []
    plain: dict[str, list[Mapping[str, Json]]] = {kind: [] for kind in _PLAIN}
    for node in nodes:
        kind, group = node.text("kind"), node.text("apiVersion").partition("/")[0]
        if kind not in KINDS or group not in ("ome.io", "serving.kserve.io") or not _has_known_version(node, problems):
            continue
        if kind in RUNTIME_KINDS:
            runtimes += filter(None, [read_runtime(node, problems, namespace)])
        elif kind in MODEL_KINDS:
            models += filter(None, [read_model(node, problems, namespace)])
        else:
            document = read(node, TYPES.record(CACHE_KINDS[0] if kind in CACHE_KINDS else kind), problems) or {}
            if (document.get("metadata") or {}).get("name") and "spec" in document:
                plain[kind].append({**document, "origin": node.location.file})
    classes, weights, *caches = map(tuple, plain.values())
    return merge_catalogues(Catalogue(tuple(runtimes), tuple(models), classes, weights=weights, caches=sum(caches, ())))


def _has_known_version(node: Node, problems: Problems) -> bool:
    kind, version = node.text("kind"), node.text("apiVersion")
    known = tuple(RUNTIME_VERSIONS) if kind in RUNTIME_KINDS else (OME_VERSION,)
    known = (KSERVE_VERSION,) if kind in CACHE_KINDS else known
    if version in known:
        return True
    location = (node.get("apiVersion") or node).location
    problems.error("PL200", location, "apiVersion", f'is "{version}", must be {" or ".join(known)} for a {kind}')
    return False


def merge_catalogues(*catalogues: Catalogue) -> Catalogue:
    """Merge catalogues. The first entry of a kind, namespace and name wins; `shadowed` names the others."""
    shadowed = [sentence for catalogue in catalogues for sentence in catalogue.shadowed]
    runtimes = _first_by_key(
        (runtime for catalogue in catalogues for runtime in catalogue.runtimes),
        lambda runtime: (runtime.group, runtime.kind, runtime.namespace, runtime.name),
        lambda runtime: runtime.origin,
        shadowed,
    )
    models = _first_by_key(
        (model for catalogue in catalogues for model in catalogue.models),
        lambda model: (model.kind, model.namespace, model.name),
        lambda model: model.origin,
        shadowed,
    )
    classes, weights, caches = (
        _first_by_key(
            (document for catalogue in catalogues for document in getattr(catalogue, field)),
            lambda document: (
                document["kind"],
                document["metadata"].get("namespace", ""),
                document["metadata"]["name"],
            ),
            lambda document: str(document.get("origin", BUILT_IN)),
            shadowed,
        )
        for field in ("accelerators", "weights", "caches")
    )
    return Catalogue(runtimes, models, classes, tuple(shadowed), weights, caches)


def _first_by_key(
    items: Iterable[Item], key: Callable[[Item], Hashable], origin: Callable[[Item], str], shadowed: list[str]
) -> tuple[Item, ...]:
    first: dict[Hashable, Item] = {}
    for item in items:
        identity = key(item)
        if identity in first:
            assert isinstance(identity, tuple)
            what = f"{identity[-3]} {identity[-1]}"
            shadowed.append(f"{what} of {origin(item)} is shadowed by that of {origin(first[identity])}")
        else:
            first[identity] = item
    return tuple(first.values())


def data_files() -> list[Path]:
    """Return the files of the built-in documents, part of the package, without the tables of its modules."""
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    return [file for file in files if not file.with_suffix(".py").exists()]


@cache
def builtin() -> Catalogue:
    """Return the built-in catalogue: our predictor, stock runtimes of KServe and OME, models, accelerator classes."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    by_kind: dict[str, list[Mapping[str, Json]]] = {kind: [] for kind in KINDS}
    for file in data_files():
        for document in filter(None, yaml.load_all(file.read_text(), Loader=loader)):
            by_kind[document["kind"]].append(document)
    return Catalogue(
        tuple(runtime_from(document, BUILT_IN) for kind in RUNTIME_KINDS for document in by_kind[kind]),
        tuple(model_from(document, BUILT_IN) for kind in MODEL_KINDS for document in by_kind[kind]),
        tuple(by_kind[ACCELERATOR_KIND]),
    )


def read_cluster_catalogue(documents: Iterable[ClusterDocument], namespace: str) -> tuple[Catalogue, tuple[Node, ...]]:
    """Read the valid documents into a catalogue, with the nodes they were read from.

    The deploying user did not write them, so an invalid document or an unknown field is left out and reported.
    """
    catalogue, nodes = Catalogue(), []
    for origin, document in documents:
        problems = Problems()
        (node,) = parse(json.dumps(document), origin, problems)
        one = catalogue_from([node], problems, namespace)
        fatal = [problem for problem in problems.errors if problem.code != UNKNOWN_FIELD]
        if fatal:
            reason = f"{fatal[0].path} {fatal[0].message}".lstrip()
            one = Catalogue(shadowed=(f"{origin} is ignored: {reason}",))
        else:
            unknown = tuple(f"{origin}: {problem.path} is unknown and ignored" for problem in problems.errors)
            one = replace(one, shadowed=(*one.shadowed, *unknown))
            nodes.append(node)
        catalogue = merge_catalogues(catalogue, one)
    return catalogue, tuple(nodes)


def used_documents(nodes: Iterable[Node], service: Service, catalogue: Catalogue) -> list[Node]:
    """Return the nodes that a service's plan uses: runtime, model, weights and cache, and all accelerator classes."""
    main = service.components.get("engine") or service.components.get("predictor")
    chosen = select_runtime(service, main, catalogue) if main is not None else None
    origins = {part.origin for part in (chosen.runtime, chosen.model) if part is not None} if chosen else set()
    cache = matching_cache(chosen.model.storage_uri, service, catalogue.caches) if chosen and chosen.model else None
    origins |= {cache.origin} if cache is not None else set()

    def is_used(node: Node) -> bool:
        kind, metadata = node.text("kind"), node.get("metadata")
        name = metadata.text("name") if metadata is not None else ""
        is_weight = kind == WEIGHTS_KIND and any(name == each.name for each in service.adapters)
        return node.location.file in origins or kind == ACCELERATOR_KIND or is_weight

    return list(filter(is_used, nodes))
