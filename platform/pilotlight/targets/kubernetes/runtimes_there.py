"""Runtimes, models, weights and accelerators of the cluster, as catalogue documents.

Read only; they rank after -f and --catalog and before the built-in ones. `explain` shows their origin:
`cluster: ClusterServingRuntime vllm`.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from pilotlight.manifests import without_server_fields
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.rights import unless_forbidden

Json = Any
OME: Final = "ome.io/v1beta1"
KSERVE: Final = "serving.kserve.io/v1alpha1"
CATALOGUE: Final = (
    (OME, "ServingRuntime"), (OME, "ClusterServingRuntime"), (KSERVE, "ServingRuntime"),
    (KSERVE, "ClusterServingRuntime"), (OME, "BaseModel"), (OME, "ClusterBaseModel"), (OME, "FineTunedWeight"),
    (OME, "AcceleratorClass"),
)  # fmt: skip


class CatalogueEntry(NamedTuple):
    """One document with its origin."""

    origin: str
    document: Mapping[str, Json]


class ClusterCatalogue(NamedTuple):
    documents: tuple[CatalogueEntry, ...]
    warnings: tuple[str, ...] = ()


def cluster_catalogue(cluster: Cluster, namespaces: Iterable[str]) -> ClusterCatalogue:
    """Return the documents of the cluster and of these namespaces; warn about kinds that may not be read."""
    documents: list[CatalogueEntry] = []
    forbidden: list[str] = []
    for version, kind, namespace in _locations(cluster, tuple(namespaces)):
        listed = unless_forbidden(partial(cluster.list, version, kind, namespace), None)
        if listed is None:
            forbidden.append(kind)
        documents += [CatalogueEntry(origin(each), without_cluster_fields(each)) for each in listed or ()]
    named = ", ".join(dict.fromkeys(forbidden))
    warning = f"the cluster's {named} may not be read with your rights: nothing is chosen from them"
    return ClusterCatalogue(tuple(documents), (warning,) if forbidden else ())


def _locations(cluster: Cluster, namespaces: tuple[str, ...]) -> Iterable[tuple[str, str, str | None]]:
    for version, name in CATALOGUE:
        kind = cluster.kind(version, name)
        for namespace in () if kind is None else namespaces if kind.namespaced else (None,):
            yield version, name, namespace


def origin(document: Mapping[str, Json]) -> str:
    metadata = document["metadata"]
    named = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    return f"cluster: {document['kind']} {named}"


def without_cluster_fields(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the document without status and fields that the API server or controllers add."""
    cleaned = without_server_fields(document)
    dropped = ("finalizers", "ownerReferences")
    cleaned["metadata"] = {name: value for name, value in cleaned["metadata"].items() if name not in dropped}
    return cleaned
