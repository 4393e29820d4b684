"""InferenceService object of a service, for kubectl: the document with a status like that of OME and KServe.

Written by `deploy`, its status updated by `status`; only if the CRD is ours (schemas, installed by the platform chart):
another controller would act on the object.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s import names
from pilotlight.targets.inferenceservice_status import to_status
from pilotlight.targets.kubernetes.apply import apply
from pilotlight.targets.kubernetes.client import MANAGER, SERVER_APPLY, Cluster, KubeApiError
from pilotlight.targets.kubernetes.kinds import unless_forbidden
from pilotlight.targets.target import Key, Release, ServiceStatus

Json = Any
KIND: Final = "InferenceService"
GROUPS: Final[Mapping[str, str]] = {"ome.io/v1beta1": "ome", "serving.kserve.io/v1beta1": "kserve"}


def save(cluster: Cluster, release: Release, status: ServiceStatus, now: str) -> str:
    """Write the object; return a warning if that is not possible. `now` is UTC, RFC 3339."""
    document = to_object(release.document)
    version = document["apiVersion"]
    if document["kind"] != KIND or cluster.kind(version, KIND) is None:  # an LLMInferenceService has no object
        return ""
    if not is_our_crd(cluster, version):
        return (
            f"{KIND} of {version} belongs to another controller of this cluster, which would act on it: "
            "the service runs without such an object"
        )
    try:
        _write(cluster, cluster.apply(document, force=True).document, status, now)
    except (KubeApiError, NotFound) as error:  # the service runs all the same
        return f"the document is not kept as an object of the cluster: {error}"
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


def _reconciled(cluster: Cluster, key: Key) -> Iterator[Mapping[str, Json]]:
    """Yield the object that a controller reconciles, unless it is being deleted or may not be read."""
    for version in GROUPS:
        document = unless_forbidden(partial(cluster.get, version, KIND, *key), None) or {}
        metadata = document.get("metadata") or {}
        if names.FINALIZER in (metadata.get("finalizers") or ()) and "deletionTimestamp" not in metadata:
            yield document


def write_reconciled(cluster: Cluster, release: Release, *, force: bool) -> None:
    """Write the document of a service that a controller reconciles, before its release, so that both agree.

    Raises FieldConflict with the owner of a field, such as Argo CD: it is changed there.
    """
    document = to_object(release.document)
    for existing in _reconciled(cluster, (release.namespace, release.name)):
        if names.ANNOTATION_SIDES in release.document:
            message = f"the controller of the cluster runs the canaries of {release.namespace}/{release.name}"
            raise UsageError(message, "put spec.canary into the document, then: kubectl apply -f FILE")
        if document["apiVersion"] == existing["apiVersion"]:
            apply(cluster, [document], force=force)


def delete_reconciled(cluster: Cluster, key: Key) -> bool:
    """Delete the object that a controller reconciles, which deletes the service; False: there is none."""
    found = list(_reconciled(cluster, key))
    for existing in found:
        cluster.delete(existing)
    return bool(found)


def to_object(document: str) -> dict[str, Json]:
    """Return the document as deployed, with the labels of the service and without our release annotations."""
    import yaml

    plain = yaml.load(document, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe, in C
    metadata = dict(plain["metadata"])
    annotations = {
        k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k not in names.RELEASE_ANNOTATIONS
    }
    owned = names.service_labels(GROUPS.get(plain["apiVersion"], "ome"), metadata["name"])
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


def is_our_crd(cluster: Cluster, version: str) -> bool:
    """Whether the CRD is ours, by its category: discovery needs no permission, unlike the CRD itself."""
    discovery = cluster.connection.request("GET", f"/apis/{version}").document
    return any(
        each["kind"] == KIND and names.CATEGORY in (each.get("categories") or ()) for each in discovery["resources"]
    )


def is_managed(document: Mapping[str, Json]) -> bool:
    """Whether we wrote the object; one applied by a user is not ours to change."""
    labels = document["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == MANAGER and names.LABEL_SERVICE in labels


def _managed_objects(cluster: Cluster, key: Key) -> Iterator[Mapping[str, Json]]:
    for version in GROUPS:
        document = cluster.get(version, KIND, *key)
        if document is not None and is_managed(document) and is_our_crd(cluster, version):
            yield document


def _write(cluster: Cluster, existing: Mapping[str, Json], status: ServiceStatus, now: str) -> None:
    before = existing.get("status") or {}
    if names.FINALIZER in (existing["metadata"].get("finalizers") or ()):
        return  # the controller writes it
    new_status = to_status(status, before, now, int(existing["metadata"].get("generation", 0)))
    if new_status != before:
        write_status(cluster, existing, new_status)


def write_status(cluster: Cluster, existing: Mapping[str, Json], new_status: Mapping[str, Json]) -> Json:
    """Write the status and return the object; None: there is no such object any more."""
    named = {name: existing["metadata"][name] for name in ("name", "namespace")}
    body = {"apiVersion": existing["apiVersion"], "kind": KIND, "metadata": named, "status": new_status}
    path = cluster.require_kind(existing["apiVersion"], KIND).path(named["namespace"], named["name"], "status")
    try:
        query = {"fieldManager": MANAGER, "force": "true"}
        return cluster.connection.request("PATCH", path, query, body, SERVER_APPLY).document
    except NotFound:
        return None
