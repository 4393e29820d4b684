"""The document of a service with its status as an object of the cluster, for everybody who looks with kubectl.

    deploy → keep      the InferenceService, its status as OME and KServe users know it
    status → refresh   the status alone, where it has changed
    delete → forget

Only where the kind is ours (`spec/crds`, installed by the platform chart): another controller would act on the object.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pilotlight import names
from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes.cluster import MANAGER, Cluster
from pilotlight.targets.kubernetes.connection import SERVER_APPLY, Refused
from pilotlight.targets.kubernetes.kept_status import kept_status
from pilotlight.targets.target import Key, Release, ServiceStatus

Json = Any
FORBIDDEN: Final = 403
KIND: Final = "InferenceService"
GROUPS: Final[Mapping[str, str]] = {"ome.io/v1beta1": "ome", "serving.kserve.io/v1beta1": "kserve"}


def keep(cluster: Cluster, release: Release, status: ServiceStatus, now: str) -> str:
    """A sentence where no object may be kept, else nothing. `now` is UTC, RFC 3339."""
    made = kept_object(release.document)
    version = made["apiVersion"]
    if cluster.kind(version, KIND) is None:
        return ""
    if not ours(cluster, version):
        return (
            f"{KIND} of {version} belongs to another controller of this cluster, which would act on it: "
            "the service runs without such an object"
        )
    try:
        _write(cluster, cluster.apply(made, force=True).document, status, now)
    except (Refused, NotFound) as refused:  # the service runs all the same
        return f"the document is not kept as an object of the cluster: {refused}"
    return ""


def refresh(cluster: Cluster, status: ServiceStatus, now: str) -> None:
    """Where no object was kept, or somebody has removed it, there is nothing to do; nor for who may only look."""
    try:
        for kept in _kept(cluster, (status.namespace, status.name)):
            _write(cluster, kept, status, now)
    except Refused as refused:
        if refused.code != FORBIDDEN:
            raise


def forget(cluster: Cluster, key: Key) -> None:
    for kept in _kept(cluster, key):
        cluster.delete(kept)


def kept_object(document: str) -> dict[str, Json]:
    """The document as it was deployed, with the labels that all objects of the service have, and no notes of ours."""
    import yaml

    plain = yaml.load(document, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe, in C
    metadata = dict(plain["metadata"])
    notes = {k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k not in names.NOTES}
    owned = names.service_labels(GROUPS[plain["apiVersion"]], metadata["name"])
    return {
        "apiVersion": plain["apiVersion"],
        "kind": KIND,
        "metadata": {
            **metadata,
            "labels": {**(metadata.get("labels") or {}), **owned},
            **({"annotations": notes} if notes else {}),
        },
        "spec": plain.get("spec") or {},
    }


def ours(cluster: Cluster, version: str) -> bool:
    """By the category that our definition has. Everybody may ask for it, unlike for the definition itself."""
    told = cluster.connection.ask("GET", f"/apis/{version}").document
    return any(each["kind"] == KIND and names.CATEGORY in (each.get("categories") or ()) for each in told["resources"])


def is_kept(document: Mapping[str, Json]) -> bool:
    """Did we write it? One that somebody applied by hand is not ours to change."""
    labels = document["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == MANAGER and names.LABEL_SERVICE in labels


def _kept(cluster: Cluster, key: Key) -> Iterator[Mapping[str, Json]]:
    for version in GROUPS:
        found = cluster.get(version, KIND, *key)
        if found is not None and is_kept(found) and ours(cluster, version):
            yield found


def _write(cluster: Cluster, kept: Mapping[str, Json], status: ServiceStatus, now: str) -> None:
    before = kept.get("status") or {}
    told = kept_status(status, before, now, int(kept["metadata"].get("generation", 0)))
    if told == before:
        return
    named = {name: kept["metadata"][name] for name in ("name", "namespace")}
    body = {"apiVersion": kept["apiVersion"], "kind": KIND, "metadata": named, "status": told}
    path = cluster.known(kept["apiVersion"], KIND).path(named["namespace"], named["name"], "status")
    try:
        cluster.connection.ask("PATCH", path, {"fieldManager": MANAGER, "force": "true"}, body, SERVER_APPLY)
    except NotFound:
        return  # deleted in between: whoever did so wants no status
