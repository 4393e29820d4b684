"""Releases kept in the cluster: one `ControllerRevision` each, so that any machine can go back to any of the last ten.

Secrets that came with a document are applied and not kept: whoever may read releases need not read those.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.errors import Conflict
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.target import Key, Release, ServiceStatus

Json = Any
API: Final = ("apps/v1", "ControllerRevision")
KEPT: Final = 10
LABEL: Final = f"{names.DOMAIN}/release"
FAILED: Final = f"{names.DOMAIN}/failed"  # revisions that were seen not to start: nobody goes back to them unasked
_SECRET: Final = re.compile(r"^kind:\s*[\"']?Secret\b", re.MULTILINE)


def stored(cluster: Cluster, key: Key) -> list[Release]:
    """Newest first."""
    namespace, name = key
    found = cluster.list(*API, namespace, f"{names.LABEL_SERVICE}={name},{LABEL}")
    return sorted(map(read, found), key=lambda release: -release.generation)


def read(document: Mapping[str, Json]) -> Release:
    data, metadata = document["data"], document["metadata"]
    return Release(
        metadata["namespace"], metadata["labels"][names.LABEL_SERVICE], data["document"], tuple(data["manifests"]),
        tuple(data.get("catalogue") or ()), None, data.get("note", ""), int(document["revision"]), data["at"],
        tuple(filter(None, (metadata.get("annotations") or {}).get(FAILED, "").split(","))),
    )  # fmt: skip


def same(one: Release, other: Release) -> bool:
    """Whether applying it would change nothing that was asked for."""
    kept = written(one, 0, "")["data"], written(other, 0, "")["data"]
    return all(kept[0][field] == kept[1][field] for field in ("document", "manifests", "catalogue"))


def keep(cluster: Cluster, release: Release, generation: int, at: str) -> None:
    """Raises Conflict when somebody else has just made this generation. What is too old goes."""
    document = written(release, generation, at)
    try:
        cluster.create(document)
    except Conflict:
        there = cluster.get(*API, release.namespace, document["metadata"]["name"])
        if there is None or not same(read(there), release):  # ours, sent twice because the first answer was lost
            message = f"another deploy of {release.namespace}/{release.name} was quicker"
            raise Conflict(message, "deploy again") from None


def remember(cluster: Cluster, status: ServiceStatus) -> None:
    """Which revisions of the newest release do not start; one that does by now is taken off."""
    found = stored(cluster, (status.namespace, status.name))
    failed = tuple(sorted(row.name for row in status.revisions if row.model_state == "FailedToLoad"))
    if found and found[0].failed != failed:
        document = written(found[0], found[0].generation, found[0].at)
        cluster.merge(document, {"metadata": {"annotations": {FAILED: ",".join(failed) or None}}})


def prune(cluster: Cluster, key: Key, spared: int = 0) -> None:
    """All but the last ten, and the generation that somebody still needs."""
    for old in stored(cluster, key)[KEPT:]:
        if old.generation == spared:
            continue
        cluster.delete(written(old, old.generation, old.at))


def written(release: Release, generation: int, at: str) -> dict[str, Json]:
    """The object. Its name is unique to the generation: that two cannot make the same is what the cluster decides."""
    return {
        "apiVersion": API[0],
        "kind": API[1],
        "metadata": {
            "name": names.fit(f"{release.name}-release-{generation}"),
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
            "manifests": list(_public(release.manifests)),
            "catalogue": [text for text in release.catalogue if not _SECRET.search(text)],
            "note": release.note,
            "at": at,
        },
    }


def _public(manifests: Iterable[Mapping[str, Json]]) -> Iterable[Mapping[str, Json]]:
    return (each for each in manifests if each.get("kind") != "Secret")


def newest(releases: Sequence[Release]) -> int:
    """The generation that runs; 0: none."""
    return releases[0].generation if releases else 0


def following(found: Sequence[Release], release: Release) -> int:
    """The generation that it makes. Raises Conflict where another was kept since it was planned, however late that is
    seen: what a cluster is asked in between takes its time."""
    there = newest(found)
    if release.expected is not None and there > release.expected:
        label = f"{release.namespace}/{release.name}"
        raise Conflict(f"{label} is at generation {there}, not {release.expected}", "look at it, and try again")
    return max(there, release.expected or 0) + 1
