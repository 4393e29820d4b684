"""The catalogue: what a plan may choose from, gathered from several sources, the first of which wins.

    the service's own files → `--catalog` and PILOTLIGHT_CATALOG → built-in (data in pilotlight/catalogue)

`catalogue_from` checks documents that users wrote. The built-in ones are checked by a test, not at every start.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from pilotlight.spec.catalogue_types import (
    ACCELERATOR_KIND,
    MODEL_KINDS,
    OME_VERSION,
    RUNTIME_KINDS,
    RUNTIME_VERSIONS,
    WEIGHTS_KIND,
    accelerator_type,
    weights_type,
)
from pilotlight.spec.model import BaseModel, Catalogue, Runtime
from pilotlight.spec.models import model_from, read_model
from pilotlight.spec.nodes import Node
from pilotlight.spec.problems import Problems
from pilotlight.spec.runtimes import read_runtime, runtime_from
from pilotlight.spec.types import Record, read

Json = Any
Item = TypeVar("Item")
KINDS: Final = (*RUNTIME_KINDS, *MODEL_KINDS, ACCELERATOR_KIND, WEIGHTS_KIND)
BUILT_IN: Final = "built-in"


def belongs(node: Node) -> bool:
    """Is this document one of the catalogue's? The rest of a file is services and what else a user keeps there."""
    return node.text("kind") in KINDS and node.text("apiVersion").partition("/")[0] in ("ome.io", "serving.kserve.io")


def catalogue_from(nodes: Iterable[Node], problems: Problems, namespace: str = "default") -> Catalogue:
    """The catalogue's documents among these, every problem told; other documents are left to others."""
    runtimes: list[Runtime] = []
    models: list[BaseModel] = []
    plain: dict[str, list[Mapping[str, Json]]] = {ACCELERATOR_KIND: [], WEIGHTS_KIND: []}
    for node in filter(belongs, nodes):
        kind = node.text("kind")
        if not _served(node, problems):
            continue
        if kind in RUNTIME_KINDS:
            runtimes.extend(found for found in [read_runtime(node, problems, namespace)] if found)
        elif kind in MODEL_KINDS:
            models.extend(found for found in [read_model(node, problems, namespace)] if found)
        elif (document := _plain(node, _PLAIN[kind](), problems)) is not None:
            plain[kind].append(document)
    classes, weights = (tuple(plain[kind]) for kind in (ACCELERATOR_KIND, WEIGHTS_KIND))
    return merge(Catalogue(tuple(runtimes), tuple(models), classes, weights=weights))


def _served(node: Node, problems: Problems) -> bool:
    """The API version must be one that has the kind."""
    kind, version = node.text("kind"), node.text("apiVersion")
    known = tuple(RUNTIME_VERSIONS) if kind in RUNTIME_KINDS else (OME_VERSION,)
    if version in known:
        return True
    place = (node.get("apiVersion") or node).place
    problems.error("PL200", place, "apiVersion", f'is "{version}", must be {" or ".join(known)} for a {kind}')
    return False


# Kinds that stay documents: a few of their fields are looked up where they are needed.
_PLAIN: Final[Mapping[str, Callable[[], Record]]] = {ACCELERATOR_KIND: accelerator_type, WEIGHTS_KIND: weights_type}


def _plain(node: Node, record: Record, problems: Problems) -> Mapping[str, Json] | None:
    document = read(node, record, problems)
    if not document or not (document.get("metadata") or {}).get("name") or "spec" not in document:
        return None
    return {**document, "origin": node.place.file}


def merge(*catalogues: Catalogue) -> Catalogue:
    """One catalogue of several. The first of the same kind, namespace and name stays; `shadowed` names the others."""
    shadowed = [sentence for catalogue in catalogues for sentence in catalogue.shadowed]
    runtimes = _first((r for c in catalogues for r in c.runtimes), _runtime_key, _runtime_origin, shadowed)
    models = _first((m for c in catalogues for m in c.models), _model_key, _model_origin, shadowed)
    classes = _first((a for c in catalogues for a in c.accelerators), _class_key, _class_origin, shadowed)
    weights = _first((w for c in catalogues for w in c.weights), _weights_key, _class_origin, shadowed)
    return Catalogue(runtimes, models, classes, tuple(shadowed), weights)


def _first(
    items: Iterable[Item], key: Callable[[Item], Hashable], origin: Callable[[Item], str], shadowed: list[str]
) -> tuple[Item, ...]:
    kept: dict[Hashable, Item] = {}
    for item in items:
        identity = key(item)
        if identity in kept:
            assert isinstance(identity, tuple)
            what = f"{identity[-3]} {identity[-1]}"
            shadowed.append(f"{what} of {origin(item)} is shadowed by that of {origin(kept[identity])}")
        else:
            kept[identity] = item
    return tuple(kept.values())


def _runtime_key(runtime: Runtime) -> Hashable:
    return (runtime.group, runtime.kind, runtime.namespace, runtime.name)


def _runtime_origin(runtime: Runtime) -> str:
    return runtime.origin


def _model_key(model: BaseModel) -> Hashable:
    return (model.kind, model.namespace, model.name)


def _model_origin(model: BaseModel) -> str:
    return model.origin


def _class_key(document: Mapping[str, Json]) -> Hashable:
    return (ACCELERATOR_KIND, "", document["metadata"]["name"])


def _weights_key(document: Mapping[str, Json]) -> Hashable:
    return (WEIGHTS_KIND, "", document["metadata"]["name"])


def _class_origin(document: Mapping[str, Json]) -> str:
    return str(document.get("origin", BUILT_IN))


def data_files() -> list[Path]:
    """The built-in documents: beside this package, in a wheel as in a checkout."""
    return sorted((Path(__file__).parent.parent / "catalogue").glob("*.yaml"))


@cache
def builtin() -> Catalogue:
    """What everybody has: our predictor, the stock runtimes of KServe and OME, known models, accelerator classes."""
    documents = [document for file in data_files() for document in _load(file)]
    by_kind: dict[str, list[Mapping[str, Json]]] = {kind: [] for kind in KINDS}
    for document in documents:
        by_kind[document["kind"]].append(document)
    return Catalogue(
        tuple(runtime_from(document, BUILT_IN) for kind in RUNTIME_KINDS for document in by_kind[kind]),
        tuple(model_from(document, BUILT_IN) for kind in MODEL_KINDS for document in by_kind[kind]),
        tuple(by_kind[ACCELERATOR_KIND]),
    )


def _load(file: Path) -> list[Mapping[str, Json]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(file.read_text(), Loader=loader) if document]
