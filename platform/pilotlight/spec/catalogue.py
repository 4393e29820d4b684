"""The catalogue that a plan chooses from, merged from several sources; the first source wins.

    the service's own files → `--catalog` and PILOTLIGHT_CATALOG → built-in (data in pilotlight/catalogue)

`catalogue_from` validates documents of users. The built-in ones are validated by a test, not at every start.
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


def is_catalogue_document(node: Node) -> bool:
    """Return whether a document belongs to the catalogue; a file may also hold services and other objects."""
    return node.text("kind") in KINDS and node.text("apiVersion").partition("/")[0] in ("ome.io", "serving.kserve.io")


def catalogue_from(nodes: Iterable[Node], problems: Problems, namespace: str = "default") -> Catalogue:
    """Read the catalogue documents among the nodes; skip other kinds."""
    runtimes: list[Runtime] = []
    models: list[BaseModel] = []
    plain: dict[str, list[Mapping[str, Json]]] = {ACCELERATOR_KIND: [], WEIGHTS_KIND: []}
    for node in filter(is_catalogue_document, nodes):
        kind = node.text("kind")
        if not _has_known_version(node, problems):
            continue
        if kind in RUNTIME_KINDS:
            runtimes.extend(runtime for runtime in [read_runtime(node, problems, namespace)] if runtime)
        elif kind in MODEL_KINDS:
            models.extend(model for model in [read_model(node, problems, namespace)] if model)
        elif (document := _plain(node, _PLAIN[kind](), problems)) is not None:
            plain[kind].append(document)
    classes, weights = (tuple(plain[kind]) for kind in (ACCELERATOR_KIND, WEIGHTS_KIND))
    return merge_catalogues(Catalogue(tuple(runtimes), tuple(models), classes, weights=weights))


def _has_known_version(node: Node, problems: Problems) -> bool:
    """Check that the API version has the kind."""
    kind, version = node.text("kind"), node.text("apiVersion")
    known = tuple(RUNTIME_VERSIONS) if kind in RUNTIME_KINDS else (OME_VERSION,)
    if version in known:
        return True
    location = (node.get("apiVersion") or node).location
    problems.error("PL200", location, "apiVersion", f'is "{version}", must be {" or ".join(known)} for a {kind}')
    return False


# Kinds that stay plain documents: only a few of their fields are used.
_PLAIN: Final[Mapping[str, Callable[[], Record]]] = {ACCELERATOR_KIND: accelerator_type, WEIGHTS_KIND: weights_type}


def _plain(node: Node, record: Record, problems: Problems) -> Mapping[str, Json] | None:
    document = read(node, record, problems)
    if not document or not (document.get("metadata") or {}).get("name") or "spec" not in document:
        return None
    return {**document, "origin": node.location.file}


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
    classes, weights = (
        _first_by_key(
            (document for catalogue in catalogues for document in getattr(catalogue, field)),
            lambda document: (document["kind"], "", document["metadata"]["name"]),
            lambda document: str(document.get("origin", BUILT_IN)),
            shadowed,
        )
        for field in ("accelerators", "weights")
    )
    return Catalogue(runtimes, models, classes, tuple(shadowed), weights)


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
    """Return the files of the built-in documents, part of the package."""
    return sorted((Path(__file__).parent.parent / "catalogue").glob("*.yaml"))


@cache
def builtin() -> Catalogue:
    """Return the built-in catalogue: our predictor, stock runtimes of KServe and OME, models, accelerator classes."""
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
