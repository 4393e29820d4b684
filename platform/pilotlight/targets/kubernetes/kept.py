"""InferenceService object of a service, for kubectl: the document with its status.

    deploy → save            the object, with a status like that of OME and KServe
    status → update_status   the status alone, if it has changed
    delete → delete

Only if the CRD is ours (`spec/crds`, installed by the platform chart): another controller would act on the object.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pilotlight import names
from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes.cluster import MANAGER, Cluster
from pilotlight.targets.kubernetes.connection import SERVER_APPLY, KubeApiError
from pilotlight.targets.kubernetes.kept_status import to_status
from pilotlight.targets.target import Key, Release, ServiceStatus

Json = Any
FORBIDDEN: Final = 403
KIND: Final = "InferenceService"
GROUPS: Final[Mapping[str, str]] = {"ome.io/v1beta1": "ome", "serving.kserve.io/v1beta1": "kserve"}


def save(cluster: Cluster, release: Release, status: ServiceStatus, now: str) -> str:
    """Write the object; return a warning if that is not possible. `now` is UTC, RFC 3339."""
    document = to_object(release.document)
    version = document["apiVersion"]
    if cluster.kind(version, KIND) is None:
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
    try:
        for existing in _managed_objects(cluster, (status.namespace, status.name)):
            _write(cluster, existing, status, now)
    except KubeApiError as error:
        if error.code != FORBIDDEN:
            raise


def delete(cluster: Cluster, key: Key) -> None:
    for existing in _managed_objects(cluster, key):
        cluster.delete(existing)


def to_object(document: str) -> dict[str, Json]:
    """Return the document as deployed, with the labels of the service and without our release annotations."""
    import yaml

    plain = yaml.load(document, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe, in C
    metadata = dict(plain["metadata"])
    annotations = {
        k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k not in names.RELEASE_ANNOTATIONS
    }
    owned = names.service_labels(GROUPS[plain["apiVersion"]], metadata["name"])
    return {
        "apiVersion": plain["apiVersion"],
        "kind": KIND,
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
    new_status = to_status(status, before, now, int(existing["metadata"].get("generation", 0)))
    if new_status == before:
        return
    named = {name: existing["metadata"][name] for name in ("name", "namespace")}
    body = {"apiVersion": existing["apiVersion"], "kind": KIND, "metadata": named, "status": new_status}
    path = cluster.require_kind(existing["apiVersion"], KIND).path(named["namespace"], named["name"], "status")
    try:
        cluster.connection.request("PATCH", path, {"fieldManager": MANAGER, "force": "true"}, body, SERVER_APPLY)
    except NotFound:
        return  # deleted meanwhile
