"""Object of a service, for kubectl: its document, such as an InferenceService, with a status as of OME and KServe.

Written by `deploy`, its status updated by `status`; only if the CRD is ours (schemas, installed by the platform chart):
another controller would act on the object.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s import names
from pilotlight.targets.inferenceservice_status import to_graph_status, to_llm_status, to_status
from pilotlight.targets.kubernetes.apply import apply
from pilotlight.targets.kubernetes.client import MANAGER, SERVER_APPLY, Cluster, KubeApiError
from pilotlight.targets.kubernetes.controller_finalizer import has_finalizer
from pilotlight.targets.kubernetes.kinds import unless_forbidden
from pilotlight.targets.target import Key, Release, ServiceStatus

Json = Any
Kind = tuple[str, str]  # apiVersion, kind


class ServiceKind(NamedTuple):
    """Documents of a kind, each of which is a service: the labels of what is made of them, and their status."""

    labels: str
    to_status: Callable[[ServiceStatus, Mapping[str, Json], str, int], dict[str, Json]]


# A further kind is one row here, its CRD in schemas/crds.py, and the chart's webhook.
SERVICE_KINDS: Final[Mapping[Kind, ServiceKind]] = {
    ("ome.io/v1beta1", "InferenceService"): ServiceKind("ome", to_status),
    ("serving.kserve.io/v1beta1", "InferenceService"): ServiceKind("kserve", to_status),
    ("serving.kserve.io/v1alpha1", "LLMInferenceService"): ServiceKind("ome", to_llm_status),
    ("serving.kserve.io/v1alpha1", "InferenceGraph"): ServiceKind("kserve", to_graph_status),
}


def kind_of(document: Mapping[str, Json]) -> Kind | None:
    """Return the kind of a service's document in SERVICE_KINDS, whichever version of its group it is written in."""
    named = str(document["apiVersion"]).partition("/")[0], document["kind"]
    return next((each for each in SERVICE_KINDS if (each[0].partition("/")[0], each[1]) == named), None)


def name_of(kind: Kind) -> str:
    """Return `ome.io/InferenceService`."""
    return f"{kind[0].partition('/')[0]}/{kind[1]}"


def save(cluster: Cluster, release: Release, status: ServiceStatus, now: str) -> str:
    """Write the object; return a warning if that is not possible. `now` is UTC, RFC 3339."""
    document = to_object(release.document)
    kind = document["apiVersion"], document["kind"]
    if cluster.kind(*kind) is None:
        return ""
    if not is_our_crd(cluster, kind):
        return (
            f"{kind[1]} of {kind[0]} is managed by another controller of this cluster: the service runs without such"
            " an object"
        )
    try:
        _write(cluster, cluster.apply(document, force=True).document, status, now)
    except (KubeApiError, NotFound) as error:  # the service runs all the same
        return f"the manifest is not stored as an object of the cluster: {error}"
    return ""


def update_status(cluster: Cluster, status: ServiceStatus, now: str) -> None:
    """Update the status, if there is an object and this account may write it."""

    def update() -> None:
        for existing in _managed_objects(cluster, (status.namespace, status.name)):
            _write(cluster, existing, status, now)

    unless_forbidden(update, None)


def delete(cluster: Cluster, key: Key) -> None:
    for existing in _managed_objects(cluster, key):
        cluster.delete(existing)


def reconciled(cluster: Cluster, key: Key) -> Iterator[Mapping[str, Json]]:
    """Yield the object that a controller reconciles or deletes, unless it may not be read."""
    for kind in SERVICE_KINDS:
        document = unless_forbidden(partial(cluster.get, *kind, *key), None)
        if document is not None and has_finalizer(document):
            yield document


def write_reconciled(cluster: Cluster, release: Release, *, force: bool) -> None:
    """Write the document of a service that a controller reconciles, before its release, so that both agree.

    Raises FieldConflict with the owner of a field, such as Argo CD: it is changed there.
    """
    document = to_object(release.document)
    for existing in reconciled(cluster, (release.namespace, release.name)):
        if "deletionTimestamp" in existing["metadata"]:
            continue
        if names.ANNOTATION_SIDES in release.document:
            message = f"the controller of the cluster runs the canaries of {release.namespace}/{release.name}"
            raise UsageError(message, "put spec.canary into the manifest, then: kubectl apply -f FILE")
        if kind_of(document) == kind_of(existing):
            apply(cluster, [document], force=force)


def to_object(document: str) -> dict[str, Json]:
    """Return the document as deployed, with the labels of the service and without our release annotations."""
    import yaml

    plain = yaml.load(document, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe, in C
    metadata = dict(plain["metadata"])
    annotations = {
        k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k not in names.RELEASE_ANNOTATIONS
    }
    kind = kind_of(plain)
    owned = names.service_labels(SERVICE_KINDS[kind].labels if kind else "ome", metadata["name"])
    return {
        "apiVersion": plain["apiVersion"],
        "kind": plain["kind"],
        "metadata": {
            **metadata,
            "labels": {**(metadata.get("labels") or {}), **owned},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": plain.get("spec") or {},
    }


def is_our_crd(cluster: Cluster, kind: Kind) -> bool:
    """Whether the CRD is ours, by its category: discovery needs no permission, unlike the CRD itself."""
    discovery = cluster.connection.request("GET", f"/apis/{kind[0]}").document
    return any(
        each["kind"] == kind[1] and names.CATEGORY in (each.get("categories") or ()) for each in discovery["resources"]
    )


def is_managed(document: Mapping[str, Json]) -> bool:
    """Whether we wrote the object; one applied by a user is not ours to change."""
    labels = document["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == MANAGER and names.LABEL_SERVICE in labels


def _managed_objects(cluster: Cluster, key: Key) -> Iterator[Mapping[str, Json]]:
    for kind in SERVICE_KINDS:
        document = unless_forbidden(partial(cluster.get, *kind, *key), None)
        if document is not None and is_managed(document) and is_our_crd(cluster, kind):
            yield document


def _write(cluster: Cluster, existing: Mapping[str, Json], status: ServiceStatus, now: str) -> None:
    before = existing.get("status") or {}
    if has_finalizer(existing):
        return  # the controller writes it
    new_status = status_of(existing, status, now)
    if new_status != before:
        write_status(cluster, existing, new_status)


def status_of(document: Mapping[str, Json], status: ServiceStatus, now: str) -> dict[str, Json]:
    """Return the status of a document as its kind has it."""
    kind = kind_of(document)
    build = SERVICE_KINDS[kind].to_status if kind else to_status
    return build(status, document.get("status") or {}, now, int(document["metadata"].get("generation") or 0))


def write_status(cluster: Cluster, existing: Mapping[str, Json], new_status: Mapping[str, Json]) -> Json:
    """Write the status and return the object; None: there is no such object any more."""
    named = {name: existing["metadata"][name] for name in ("name", "namespace")}
    kind = existing["apiVersion"], existing["kind"]
    body = {"apiVersion": kind[0], "kind": kind[1], "metadata": named, "status": new_status}
    path = cluster.require_kind(*kind).path(named["namespace"], named["name"], "status")
    try:
        query = {"fieldManager": MANAGER, "force": "true"}
        return cluster.connection.request("PATCH", path, query, body, SERVER_APPLY).document
    except NotFound:
        return None
    except KubeApiError as error:
        if "not declared in schema" not in str(error):
            raise
        # A CRD of KServe or OME: an apply would have to leave out what it does not declare, a merge drops it.
        return cluster.merge(body, {"status": new_status}, "status").document
