"""Releases stored as ControllerRevisions, so that any machine can roll back to any of the last ten.

Secrets of a document are applied, but not stored: reading releases must not require reading secrets.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.errors import Conflict
from pilotlight.k8s import names
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.target import Key, Release, ServiceStatus

Json = Any
API: Final = ("apps/v1", "ControllerRevision")
HISTORY_LIMIT: Final = 10
LABEL: Final = f"{names.DOMAIN}/release"
FAILED: Final = f"{names.DOMAIN}/failed"  # revisions that failed to start: no automatic rollback to them
COMPLETE: Final = f"{names.DOMAIN}/complete"  # all its objects were applied; absent after a crash in between
_SECRET: Final = re.compile(r"^kind:\s*[\"']?Secret\b", re.MULTILINE)


def stored(cluster: Cluster, key: Key) -> list[Release]:
    """Return the stored releases, newest first."""
    namespace, name = key
    documents = cluster.list(*API, namespace, f"{names.LABEL_SERVICE}={name},{LABEL}")
    return sorted(map(read, filter(is_readable, documents)), key=lambda release: -release.generation)


def newest_object(cluster: Cluster, key: Key) -> Mapping[str, Json] | None:
    listed = cluster.list(*API, key[0], kinds.selector(key[1]))
    objects = [each for each in listed if LABEL in kinds.labels(each) and is_readable(each)]
    return max(objects, key=lambda each: int(each["revision"]), default=None)


def is_readable(document: Mapping[str, Json]) -> bool:
    """Whether it has the fields of a release: one that others have written must not keep a service from deletion."""
    data = document.get("data")
    return isinstance(data, Mapping) and all(
        isinstance(data.get(name), kind) for name, kind in (("document", str), ("manifests", list), ("at", str))
    )


def is_complete(document: Mapping[str, Json]) -> bool:
    return COMPLETE in (document["metadata"].get("annotations") or {})


def read(document: Mapping[str, Json]) -> Release:
    data, metadata = document["data"], document["metadata"]
    return Release(
        metadata["namespace"], metadata["labels"][names.LABEL_SERVICE], data["document"], tuple(data["manifests"]),
        tuple(data.get("catalogue") or ()), None, data.get("note", ""), int(document["revision"]), data["at"],
        tuple(filter(None, (metadata.get("annotations") or {}).get(FAILED, "").split(","))),
        data.get("by", ""),
    )  # fmt: skip


def same(one: Release, other: Release) -> bool:
    """Whether document, manifests and catalogue are equal."""
    first, second = to_object(one, 0, "")["data"], to_object(other, 0, "")["data"]
    return all(first[field] == second[field] for field in ("document", "manifests", "catalogue"))


def save(cluster: Cluster, release: Release, generation: int, at: str) -> None:
    """Store a release. Raises Conflict if another deploy has created this generation."""
    document = to_object(release, generation, at)
    try:
        cluster.create(document)
    except Conflict:
        existing = cluster.get(*API, release.namespace, document["metadata"]["name"])
        if (
            existing is None or not is_readable(existing) or not same(read(existing), release)
        ):  # else: our own retry after a lost response
            message = f"another deploy of {release.namespace}/{release.name} finished first"
            raise Conflict(message, "deploy again") from None


def record_failures(cluster: Cluster, status: ServiceStatus) -> None:
    """Record which revisions of the newest release fail to start; recovered ones are removed."""
    releases = stored(cluster, (status.namespace, status.name))
    failed = tuple(sorted(row.name for row in status.revisions if row.model_state == "FailedToLoad"))
    if releases and releases[0].failed != failed:
        document = to_object(releases[0], releases[0].generation, releases[0].at)
        cluster.merge(document, {"metadata": {"annotations": {FAILED: ",".join(failed) or None}}})


def mark_complete(cluster: Cluster, key: Key) -> None:
    """Record that all objects of the newest release were applied."""
    newest_release = newest_object(cluster, key)
    if newest_release is not None and not is_complete(newest_release):
        cluster.merge(newest_release, {"metadata": {"annotations": {COMPLETE: "true"}}})


def prune(cluster: Cluster, key: Key, spared: int = 0) -> None:
    """Delete all but the last ten, sparing the generation that a canary needs."""
    for old in stored(cluster, key)[HISTORY_LIMIT:]:
        if old.generation == spared:
            continue
        cluster.delete(to_object(old, old.generation, old.at))


def to_object(release: Release, generation: int, at: str) -> dict[str, Json]:
    """Return the object. Its name includes the generation, so that of two concurrent deploys one fails."""
    return {
        "apiVersion": API[0],
        "kind": API[1],
        "metadata": {
            "name": names.truncate(f"{release.name}-release-{generation}"),
            "namespace": release.namespace,
            "labels": {
                "app.kubernetes.io/name": release.name,
                "app.kubernetes.io/managed-by": "pilotlight",
                names.LABEL_SERVICE: release.name,
                LABEL: str(generation),
            },
        },
        "revision": generation,
        "data": {
            "document": release.document,
            "manifests": [each for each in release.manifests if each.get("kind") != "Secret"],
            "catalogue": [text for text in release.catalogue if not _SECRET.search(text)],
            "note": release.note,
            "by": release.by,
            "at": at,
        },
    }


def newest(releases: Sequence[Release]) -> int:
    """Return the newest generation; 0: none."""
    return releases[0].generation if releases else 0


def next_generation(releases: Sequence[Release], release: Release) -> int:
    """Return the generation of a new release. Raises Conflict if another was stored since it was planned."""
    latest = newest(releases)
    if release.expected is not None and latest > release.expected:
        label = f"{release.namespace}/{release.name}"
        raise Conflict(f"{label} is at generation {latest}, not {release.expected}", "check it and retry")
    return max(latest, release.expected or 0) + 1
