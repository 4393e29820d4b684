"""The runtimes, models, weights and accelerators that a cluster has itself, as documents for the catalogue.

They are read and never written, after -f and --catalog and before the built-in ones. Each says where it is from:
`explain` shows `cluster: ClusterServingRuntime vllm`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pilotlight.manifests import without_noise
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import Refused

Json = Any
FORBIDDEN: Final = 403
OME: Final = "ome.io/v1beta1"
KSERVE: Final = "serving.kserve.io/v1alpha1"
CATALOGUE: Final = (
    (OME, "ServingRuntime"), (OME, "ClusterServingRuntime"), (KSERVE, "ServingRuntime"),
    (KSERVE, "ClusterServingRuntime"), (OME, "BaseModel"), (OME, "ClusterBaseModel"), (OME, "FineTunedWeight"),
    (OME, "AcceleratorClass"),
)  # fmt: skip


class There(NamedTuple):
    """One document with where it is from."""

    origin: str
    document: Mapping[str, Json]


class Found(NamedTuple):
    documents: tuple[There, ...]
    warnings: tuple[str, ...] = ()


def runtimes_there(cluster: Cluster, namespaces: Iterable[str]) -> Found:
    """Of the whole cluster, and of these namespaces. What may not be read is passed over, and said."""
    documents: list[There] = []
    unread: list[str] = []
    for version, kind, namespace in _places(cluster, tuple(namespaces)):
        try:
            documents += [There(origin(each), cleaned(each)) for each in cluster.list(version, kind, namespace)]
        except Refused as refused:
            if refused.code != FORBIDDEN:
                raise
            unread.append(kind)
    return Found(tuple(documents), tuple(_unread(unread)))


def _places(cluster: Cluster, namespaces: tuple[str, ...]) -> Iterable[tuple[str, str, str | None]]:
    for version, name in CATALOGUE:
        kind = cluster.kind(version, name)
        for namespace in () if kind is None else namespaces if kind.namespaced else (None,):
            yield version, name, namespace


def _unread(kinds: list[str]) -> Iterable[str]:
    if kinds:
        named = ", ".join(dict.fromkeys(kinds))
        yield f"the cluster's {named} may not be read with your rights: nothing is chosen from them"


def origin(document: Mapping[str, Json]) -> str:
    metadata = document["metadata"]
    named = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    return f"cluster: {document['kind']} {named}"


def cleaned(document: Mapping[str, Json]) -> dict[str, Json]:
    """As somebody wrote it: neither status nor what the API server added."""
    kept = without_noise(document)
    unwritten = ("finalizers", "ownerReferences")
    kept["metadata"] = {name: value for name, value in kept["metadata"].items() if name not in unwritten}
    return kept
