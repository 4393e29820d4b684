"""Releases in the store: checked against the expected generation, stored unless unchanged, pruned.

`live_manifests` returns those of a service as a cluster would, with overrides and Knative status: the next plan's
current state is read from them as from a cluster's objects.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import json

from pilotlight.errors import Conflict
from pilotlight.k8s import names
from pilotlight.targets.local.manifests.object_lookup import is_knative
from pilotlight.targets.local.store.schema import StoredService
from pilotlight.targets.target import Release, RevisionStatus, ServiceStatus

# ruff: noqa: S608 - the parts of each statement are constants of this module


Json = Any
RELEASE_HISTORY_LIMIT: Final = 10
# Workload, name of its revision, and the manifests of this revision.
NewRevision = tuple[str, str, Sequence[Mapping[str, Json]]]

OF_SERVICE: Final = "WHERE namespace = ? AND name = ?"
PROVEN: Final = ("Loaded", "Standby", "Parked")  # model states of a revision that has been ready


def apply(connection: sqlite3.Connection, release: Release, revisions: Sequence[NewRevision], now: str) -> int:
    """Store a release within the caller's transaction; return the service's generation afterwards."""
    key = (release.namespace, release.name)
    current = _current_generation(connection, release)
    stored = f"SELECT document, catalogue, manifests FROM releases {OF_SERVICE} AND generation = ?"
    if current and connection.execute(stored, (*key, current)).fetchone() == _encoded(release):
        return current
    before = connection.execute(f"SELECT generation FROM deleted {OF_SERVICE}", key).fetchone()
    generation = 1 + max(current, int(before[0]) if before else 0)
    _write(connection, release, generation, now)
    _write_revisions(connection, release, revisions, generation, now)
    _prune_releases(connection, release)
    return generation


def _current_generation(connection: sqlite3.Connection, release: Release) -> int:
    """Return the stored generation; 0: no such service. Raise Conflict if it is not the expected one."""
    key = (release.namespace, release.name)
    label = "/".join(key)
    row = connection.execute(f"SELECT generation, deleting FROM services {OF_SERVICE}", key).fetchone()
    generation, deleting = (int(row[0]), bool(row[1])) if row else (0, False)
    if deleting:
        raise Conflict(f"{label} is being deleted; retry when it is deleted")
    if release.expected is None or release.expected == generation:
        return generation
    yours = f"yours started from {release.expected}" if release.expected else "yours started before the first deploy"
    if not generation:
        raise Conflict(f"{label} was deleted in the meantime ({yours}); run it again")
    raise Conflict(f"{label} was changed by another deploy (generation {generation}, {yours}); run it again")


def _encoded(release: Release) -> tuple[str, bytes, bytes]:
    return release.document, json.encode(release.catalogue), json.encode(release.manifests)


def _write(connection: sqlite3.Connection, release: Release, generation: int, now: str) -> None:
    connection.execute(
        """INSERT INTO services (namespace, name, generation, created_at, updated_at) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET generation = excluded.generation, updated_at = excluded.updated_at""",
        (release.namespace, release.name, generation, now, now),
    )
    row = (release.namespace, release.name, generation, now, *_encoded(release), release.note, release.by)
    connection.execute("INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def _write_revisions(
    connection: sqlite3.Connection, release: Release, revisions: Sequence[NewRevision], generation: int, now: str
) -> None:
    """Insert revisions; an existing one keeps its creation time and loses its failure.

    A revision that failed may start now: its autoscaler or a Secret may have changed. Its first answers are awaited
    again if they failed.
    """
    # `age_at` is unused but NOT NULL.
    connection.executemany(
        """INSERT INTO revisions (namespace, name, workload, revision, generation, manifests, created_at, age_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET generation = excluded.generation, manifests = excluded.manifests, failed = '',
            verification = replace(verification, 'failing', 'unverified'), answer_failure = ''""",
        [
            (release.namespace, release.name, workload, name, generation, json.encode(objects), now, now)
            for workload, name, objects in revisions
        ],
    )


def _prune_releases(connection: sqlite3.Connection, release: Release) -> None:
    """Delete old releases, except those of stored revisions and the stable one that a canary may return to."""
    key = (release.namespace, release.name)
    connection.execute(
        f"""DELETE FROM releases {OF_SERVICE} AND generation NOT IN (
            SELECT generation FROM releases {OF_SERVICE} ORDER BY generation DESC LIMIT {RELEASE_HISTORY_LIMIT})
        AND generation NOT IN (SELECT generation FROM revisions {OF_SERVICE})
        AND generation NOT IN (SELECT coalesce(json_extract(state, '$.current.stable_generation'), 0)
            FROM canaries {OF_SERVICE})""",
        (*key, *key, *key, *key),
    )


def live_manifests(stored: StoredService, status: ServiceStatus) -> list[dict[str, Json]]:
    return [_live(manifest, stored, status) for manifest in stored.manifests]


def _live(manifest: dict[str, Json], stored: StoredService, status: ServiceStatus) -> dict[str, Json]:
    metadata = manifest.get("metadata") or {}
    name, knative = str(metadata.get("name", "")), is_knative(manifest)
    shown = dict(manifest)
    if (knative or manifest.get("kind") in ("Deployment", "StatefulSet")) and stored.overrides.get(name):
        value = json.encode(stored.overrides[name], order="sorted").decode()
        annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_OVERRIDES: value}
        shown["metadata"] = {**metadata, "annotations": annotations}
    if knative:
        revisions = [revision for revision in status.revisions if revision.workload == name]
        shown["status"] = _knative_status(manifest, revisions)
    return shown


def _knative_status(manifest: Mapping[str, Json], revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    """Return the status of a Knative Service; `revisions` are newest first."""
    template = manifest["spec"]["template"].get("metadata") or {}
    created = template.get("name") or next((revision.name for revision in revisions), "")
    ready = next((revision.name for revision in revisions if revision.model_state in PROVEN), "")
    status = {
        "latestCreatedRevisionName": created,
        "latestReadyRevisionName": ready,
        "traffic": [share for revision in revisions for share in _shares(revision)],
    }
    return {key: value for key, value in status.items() if value}


def _shares(revision: RevisionStatus) -> Iterator[dict[str, Json]]:
    """Yield Knative's traffic entries: one per tag, the percentage in the first."""
    target = {"revisionName": revision.name, "latestRevision": False}
    for index, tag in enumerate(revision.tags or (("",) if revision.percent else ())):
        yield {**target, "percent": 0 if index else revision.percent, **({"tag": tag} if tag else {})}
