"""One deploy as it is written: is it the expected state, is it anything new, and which old releases go for it."""

# ruff: noqa: S608 - the parts of each statement are constants of this module

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import json

from pilotlight.errors import Conflict
from pilotlight.targets.target import Release

Json = Any
RELEASES_KEPT: Final = 10
# A workload, the name of its revision, and the objects that this revision is interpreted from.
NewRevision = tuple[str, str, Sequence[Mapping[str, Json]]]

_OF: Final = "WHERE namespace = ? AND name = ?"


def apply(connection: sqlite3.Connection, release: Release, revisions: Sequence[NewRevision], now: str) -> int:
    """Within the caller's transaction: the generation that the service has then."""
    found = _present(connection, release)
    if found and _same(connection, release, found):
        return found
    generation = _next_generation(connection, release, found)
    _write(connection, release, generation, now)
    _write_revisions(connection, release, revisions, generation, now)
    _forget_old(connection, release)
    return generation


def _present(connection: sqlite3.Connection, release: Release) -> int:
    """The generation that is there, which must be the expected one; 0: the service is not there."""
    label = f"{release.namespace}/{release.name}"
    found = connection.execute(
        f"SELECT generation, deleting FROM services {_OF}", (release.namespace, release.name)
    ).fetchone()
    generation, deleting = (int(found[0]), bool(found[1])) if found else (0, False)
    if deleting:
        raise Conflict(f"{label} is being deleted; run it again once it is gone")
    if release.expected is None or release.expected == generation:
        return generation
    yours = f"yours started from {release.expected}" if release.expected else "yours started when there was none"
    if not generation:
        raise Conflict(f"{label} was deleted meanwhile ({yours}); run it again")
    raise Conflict(f"{label} was changed by another deploy (generation {generation}, {yours}); run it again")


def _encoded(release: Release) -> tuple[str, bytes, bytes]:
    return release.document, json.encode(release.catalogue), json.encode(release.manifests)


def _same(connection: sqlite3.Connection, release: Release, generation: int) -> bool:
    sql = f"SELECT document, catalogue, manifests FROM releases {_OF} AND generation = ?"
    found = connection.execute(sql, (release.namespace, release.name, generation)).fetchone()
    return bool(found == _encoded(release))


def _next_generation(connection: sqlite3.Connection, release: Release, present: int) -> int:
    sql = f"SELECT generation FROM deleted {_OF}"
    before = connection.execute(sql, (release.namespace, release.name)).fetchone()
    return 1 + max(present, int(before[0]) if before else 0)


def _write(connection: sqlite3.Connection, release: Release, generation: int, now: str) -> None:
    connection.execute(
        """INSERT INTO services (namespace, name, generation, created_at, updated_at) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET generation = excluded.generation, updated_at = excluded.updated_at""",
        (release.namespace, release.name, generation, now, now),
    )
    document, catalogue, manifests = _encoded(release)
    row = (release.namespace, release.name, generation, now, document, catalogue, manifests, release.note)
    connection.execute("INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def _write_revisions(
    connection: sqlite3.Connection, release: Release, revisions: Sequence[NewRevision], generation: int, now: str
) -> None:
    """One that is there keeps its age and may try again: its autoscaler, or a Secret, can be another."""
    connection.executemany(
        """INSERT INTO revisions (namespace, name, workload, revision, generation, manifests, created_at, age_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET generation = excluded.generation, manifests = excluded.manifests, failed = ''""",
        [
            (release.namespace, release.name, workload, name, generation, json.encode(objects), now, now)
            for workload, name, objects in revisions
        ],
    )


def _forget_old(connection: sqlite3.Connection, release: Release) -> None:
    """A canary goes back to the release that it stands beside, however many steps it has taken since."""
    key = (release.namespace, release.name)
    connection.execute(
        f"""DELETE FROM releases {_OF} AND generation NOT IN (
            SELECT generation FROM releases {_OF} ORDER BY generation DESC LIMIT {RELEASES_KEPT})
        AND generation NOT IN (SELECT generation FROM revisions {_OF})
        AND generation NOT IN (SELECT coalesce(json_extract(state, '$.current.stable_generation'), 0)
            FROM canaries {_OF})""",
        (*key, *key, *key, *key),
    )
