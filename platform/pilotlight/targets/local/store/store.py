"""Everything that must survive the control process, behind methods that are one transaction each.

The engine writes here before it acts and reads here when it starts; nothing else opens the file. Instants are UTC
texts (RFC 3339) that the caller brings: the store has no clock.
"""

# ruff: noqa: S608 - the parts of each statement are constants of this module

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import json

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.local.store import applying, canaries, journal
from pilotlight.targets.local.store.applying import NewRevision
from pilotlight.targets.local.store.database import Database
from pilotlight.targets.local.store.records import StoredRevision, StoredService
from pilotlight.targets.target import Event, KeptCanary, Key, Release

Json = Any

_SERVICES: Final = """SELECT s.namespace, s.name, s.generation, r.document, s.created_at, s.updated_at, s.deleting,
    r.manifests, r.catalogue FROM services s JOIN releases r USING (namespace, name, generation)"""
_REVISIONS: Final = """SELECT namespace, name, workload, revision, generation, created_at, first_ready_at, failed,
    age_s, age_at, manifests FROM revisions"""
_OF: Final = "WHERE namespace = ? AND name = ?"
_OF_REVISION: Final = f"{_OF} AND workload = ? AND revision = ?"


class Store:
    """Used from the thread that opened it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, path: Path) -> "Store":
        return cls(Database(path))

    def close(self) -> None:
        self._database.close()

    def apply(self, release: Release, revisions: Sequence[NewRevision], now: str, reset: bool = False) -> int:
        """The generation that the service has then. What is there already is not written again.

        Raises Conflict when it is not at `release.expected`, which is 0 for a service that should not be there.
        """
        with self._database.change(durable=True) as connection:
            if reset:
                connection.execute(f"DELETE FROM overrides {_OF}", (release.namespace, release.name))
            return applying.apply(connection, release, revisions, now)

    def service(self, key: Key) -> StoredService | None:
        found = self._services("WHERE s.namespace = ? AND s.name = ?", key)
        return found[0] if found else None

    def services(self) -> list[StoredService]:
        """By namespace and name."""
        return self._services("ORDER BY s.namespace, s.name", ())

    def _services(self, which: str, values: Sequence[str]) -> list[StoredService]:
        overrides: dict[Key, dict[str, Json]] = {}
        for namespace, name, workload, value in self._database.rows("SELECT * FROM overrides"):
            overrides.setdefault((namespace, name), {})[workload] = json.decode(value)
        rows = self._database.rows(f"{_SERVICES} {which}", values)
        return [_service(row, overrides.get((row[0], row[1]), {})) for row in rows]

    def releases(self, key: Key) -> list[Release]:
        """Newest first. Those of revisions that are not forgotten stay beyond the last ten."""
        sql = f"""SELECT document, manifests, catalogue, note, generation, at FROM releases {_OF}
            ORDER BY generation DESC"""
        return [
            Release(
                *key, document, json.decode(manifests, type=tuple[dict[str, Json], ...]),
                catalogue=json.decode(catalogue, type=tuple[str, ...]), note=note, generation=generation, at=at,
            )
            for document, manifests, catalogue, note, generation, at in self._database.rows(sql, key)
        ]  # fmt: skip

    def revisions(self, key: Key) -> list[StoredRevision]:
        """The latest deployed first."""
        sql = f"{_REVISIONS} {_OF} ORDER BY generation DESC, rowid DESC"
        return [StoredRevision(*row) for row in self._database.rows(sql, key)]

    def mark_ready(self, key: Key, workload: str, revision: str, now: str) -> None:
        """It has answered. Only the first time counts; whatever failed before is past."""
        changes = "failed = '', first_ready_at = coalesce(nullif(first_ready_at, ''), ?)"
        self._one(f"UPDATE revisions SET {changes} {_OF_REVISION}", (now, *key, workload, revision))

    def mark_failed(self, key: Key, workload: str, revision: str, reason: str) -> None:
        """Why it cannot be started; an empty reason lets it try again."""
        self._one(f"UPDATE revisions SET failed = ? {_OF_REVISION}", (reason, *key, workload, revision))

    def save_age(self, key: Key, workload: str, revision: str, age_s: float, now: str) -> None:
        """How old it is by a clock that cannot be set; what passes while nobody counts is added to it later."""
        values = (age_s, now, *key, workload, revision)
        self._one(f"UPDATE revisions SET age_s = ?, age_at = ? {_OF_REVISION}", values)

    def forget_revision(self, key: Key, workload: str, revision: str) -> None:
        self._one(f"DELETE FROM revisions {_OF_REVISION}", (*key, workload, revision))

    def set_overrides(self, key: Key, workload: str, values: Mapping[str, Json] | None) -> None:
        """What `scale` and `traffic` say of a workload; None: as the document says again."""
        with self._database.change(durable=True) as connection:
            _exists(connection, key)
            connection.execute(f"DELETE FROM overrides {_OF} AND workload = ?", (*key, workload))
            if values:
                row = (*key, workload, json.encode(values))
                connection.execute("INSERT INTO overrides VALUES (?, ?, ?, ?)", row)

    def save_replica(self, replica: str, value: Mapping[str, Json]) -> None:
        self._one("INSERT OR REPLACE INTO replicas VALUES (?, ?)", (replica, json.encode(value)))

    def drop_replica(self, replica: str) -> None:
        self._one("DELETE FROM replicas WHERE id = ?", (replica,))

    def replicas(self) -> list[dict[str, Json]]:
        rows = self._database.rows("SELECT value FROM replicas ORDER BY rowid")
        return [json.decode(value, type=dict[str, Json]) for (value,) in rows]

    def add_event(self, event: Event) -> int:
        """Its number. The oldest go when there are too many."""
        with self._database.change() as connection:
            return journal.add(connection, event)

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> list[Event]:
        """Oldest first: the next ones after that number; from the start (0), the newest ones."""
        return journal.read(self._database, key, after, limit)

    def canaries(self) -> list[KeptCanary]:
        return canaries.read(self._database)

    def canary(self, key: Key) -> KeptCanary | None:
        return next(iter(canaries.read(self._database, key)), None)

    def keep_canary(self, key: Key, state: str, version: str) -> KeptCanary:
        """Raises Conflict when it is not at that version."""
        with self._database.change(durable=True) as connection:
            _exists(connection, key)
            return canaries.keep(connection, key, state, version)

    def port(self, key: Key, kind: str, candidates: Iterable[int]) -> int:
        """The service's own port of this kind: the one that it has, else the first candidate that nobody has."""
        with self._database.change() as connection:
            _exists(connection, key)
            row = connection.execute(f"SELECT port FROM ports {_OF} AND kind = ?", (*key, kind)).fetchone()
            if row:
                return int(row[0])
            taken = {port for (port,) in connection.execute("SELECT port FROM ports")}
            free = next((port for port in candidates if port not in taken), None)
            if free is None:
                raise PlatformError(f"no {kind} port is left for {'/'.join(key)}; delete a service to free one")
            connection.execute("INSERT INTO ports VALUES (?, ?, ?, ?)", (*key, kind, free))
            return free

    def release_port(self, key: Key, kind: str) -> None:
        """Somebody else on this machine has it: the next `port` gives another."""
        self._one(f"DELETE FROM ports {_OF} AND kind = ?", (*key, kind))

    def begin_delete(self, key: Key) -> None:
        with self._database.change(durable=True) as connection:
            _exists(connection, key)
            connection.execute(f"UPDATE services SET deleting = 1 {_OF}", key)

    def finish_delete(self, key: Key) -> None:
        """Nothing of it is left but its events."""
        with self._database.change(durable=True) as connection:
            kept = f"INSERT OR REPLACE INTO deleted SELECT namespace, name, generation FROM services {_OF}"
            connection.execute(kept, key)
            connection.execute(f"DELETE FROM services {_OF}", key)

    def _one(self, sql: str, values: Sequence[Json]) -> None:
        with self._database.change() as connection:
            connection.execute(sql, values)


def _exists(connection: sqlite3.Connection, key: Key) -> None:
    if not connection.execute(f"SELECT 1 FROM services {_OF}", key).fetchone():
        raise NotFound(f"there is no service {'/'.join(key)}")


def _service(row: tuple[Any, ...], overrides: Mapping[str, Mapping[str, Json]]) -> StoredService:
    namespace, name, generation, document, created_at, updated_at, deleting, manifests, catalogue = row
    return StoredService(
        namespace, name, generation, document, created_at, updated_at, bool(deleting), manifests,
        json.decode(catalogue, type=tuple[str, ...]), overrides,
    )  # fmt: skip
