"""Store of the control process: services, revisions, replicas, ports, events and canaries; one transaction a method.

The engine writes before it acts and reads when it starts; nothing else opens the file. Times are RFC 3339 texts in UTC
from the caller, such as `EventRecorder`: the store has no clock.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import json

from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.k8s.adapters import adapters_of
from pilotlight.k8s.model_pins import is_local, local_path, pins_of
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.store import releases as store_releases
from pilotlight.targets.local.store.releases import OF_SERVICE, NewRevision
from pilotlight.targets.local.store.schema import Database, StoredRevision, StoredService
from pilotlight.targets.local.store.token_usage import TokenUsage
from pilotlight.targets.target import CanaryRecord, Event, Key, Release

# ruff: noqa: S608 - the parts of each statement are constants

Json = Any
MAX_EVENTS_PER_SERVICE: Final = 1_000
MAX_EVENTS: Final = 10_000
_CANARIES: Final = "SELECT namespace, name, state, CAST(version AS TEXT) FROM canaries"
_EVENT_FIELDS: Final = "at, namespace, service, object, type, reason, message"
_OF_EVENT: Final = "namespace = ? AND service = ?"
_SERVICES: Final = """SELECT s.namespace, s.name, s.generation, r.document, s.created_at, s.updated_at, s.deleting,
    r.manifests, r.catalogue FROM services s JOIN releases r USING (namespace, name, generation)"""
_REVISIONS: Final = """SELECT namespace, name, workload, revision, generation, created_at, first_ready_at, failed,
    verification, answer_failure, manifests, gpu_peak FROM revisions"""
_OF_REVISION: Final = f"{OF_SERVICE} AND workload = ? AND revision = ?"


class Store:
    """Used from the thread that opened it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.token_usage = TokenUsage(database)

    @classmethod
    def open(cls, path: Path) -> "Store":
        return cls(Database(path))

    def close(self) -> None:
        self._database.close()

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever deployed: a deleted service leaves its events and its last generation."""
        tables = ("services", "deleted", "events", "replicas")
        return not any(self._database.rows(f"SELECT 1 FROM {table} LIMIT 1") for table in tables)

    def apply(self, release: Release, revisions: Sequence[NewRevision], now: str, reset: bool = False) -> int:
        """Store a release unless it is unchanged; return the service's generation.

        Raise Conflict if the service is not at `release.expected`; 0: it must not exist.
        """
        with self._database.change(durable=True) as connection:
            if reset:
                connection.execute(f"DELETE FROM overrides {OF_SERVICE}", (release.namespace, release.name))
            return store_releases.apply(connection, release, revisions, now)

    def service(self, key: Key) -> StoredService | None:
        services = self._services("WHERE s.namespace = ? AND s.name = ?", key)
        return services[0] if services else None

    def created_at(self, key: Key) -> str:
        """Return when the service was created. Raise NotFound if there is none."""
        rows = self._database.rows(f"SELECT created_at FROM services {OF_SERVICE}", key)
        if not rows:
            raise _missing(key)
        return str(rows[0][0])

    def services(self) -> list[StoredService]:
        return self._services("ORDER BY s.namespace, s.name", ())

    def _services(self, which: str, values: Sequence[str]) -> list[StoredService]:
        overrides: dict[Key, dict[str, Json]] = {}
        for namespace, name, workload, value in self._database.rows("SELECT * FROM overrides"):
            overrides.setdefault((namespace, name), {})[workload] = json.decode(value)
        rows = self._database.rows(f"{_SERVICES} {which}", values)
        return [
            StoredService(
                namespace, name, generation, document, created, updated, bool(deleting), manifests,
                json.decode(catalogue, type=tuple[str, ...]), overrides.get((namespace, name), {}),
            )
            for namespace, name, generation, document, created, updated, deleting, manifests, catalogue in rows
        ]  # fmt: skip

    def releases(self, key: Key) -> list[Release]:
        """Return releases, newest first; those of stored revisions are kept beyond RELEASE_HISTORY_LIMIT."""
        sql = f"""SELECT document, manifests, catalogue, note, generation, at, deployed_by FROM releases {OF_SERVICE}
            ORDER BY generation DESC"""
        return [
            Release(
                *key, document, json.decode(manifests, type=tuple[dict[str, Json], ...]),
                catalogue=json.decode(catalogue, type=tuple[str, ...]), note=note, generation=generation, at=at, by=by,
            )
            for document, manifests, catalogue, note, generation, at, by in self._database.rows(sql, key)
        ]  # fmt: skip

    def local_pins(self) -> set[tuple[str, str, str, int]]:
        """Return path and digest of each local model that a stored release is pinned to, its service and generation."""
        rows = self._database.rows("SELECT manifests, namespace, name, generation FROM releases")
        return {
            (local_path(uri), digest, f"{namespace}/{name}", generation)
            for text, namespace, name, generation in rows
            for one in json.decode(text, type=list[dict[str, Json]])
            for uri, digest in (
                *((uri, pin.digest) for uri, pin in pins_of(one).items()),
                *((each.uri, each.digest) for each in adapters_of(one) if each.digest),
            )
            if is_local(uri)
        }

    def revisions(self, key: Key) -> list[StoredRevision]:
        """Return revisions, the latest deployed first."""
        sql = f"{_REVISIONS} {OF_SERVICE} ORDER BY generation DESC, rowid DESC"
        return [StoredRevision(*row) for row in self._database.rows(sql, key)]

    def note(self, key: Key, generation: int) -> str:
        """Return the note of a release; empty if it has none."""
        rows = self._database.rows(f"SELECT note FROM releases {OF_SERVICE} AND generation = ?", (*key, generation))
        return str(rows[0][0]) if rows else ""

    def set_note(self, key: Key, generation: int, note: str) -> None:
        self._one(f"UPDATE releases SET note = ? {OF_SERVICE} AND generation = ?", (note, *key, generation))

    def mark_ready(self, key: Key, workload: str, revision: str, now: str) -> None:
        """Record the first readiness of a revision, and clear its failure."""
        changes = "failed = '', first_ready_at = coalesce(nullif(first_ready_at, ''), ?)"
        self._one(f"UPDATE revisions SET {changes} {_OF_REVISION}", (now, *key, workload, revision), durable=True)

    def update_revision(
        self, key: Key, workload: str, revision: str, *, durable: bool = False, **columns: str | int
    ) -> None:
        """Set columns of a revision, by the names of `StoredRevision`."""
        changes = ", ".join(f"{name} = ?" for name in columns)
        values = (*columns.values(), *key, workload, revision)
        self._one(f"UPDATE revisions SET {changes} {_OF_REVISION}", values, durable=durable)

    def forget_revision(self, key: Key, workload: str, revision: str) -> None:
        self._one(f"DELETE FROM revisions {_OF_REVISION}", (*key, workload, revision))

    def set_overrides(self, key: Key, workload: str, values: Mapping[str, Json] | None) -> None:
        """Replace the overrides of `scale` and `traffic` of a workload; None removes them."""
        with self._database.change(durable=True) as connection:
            _exists(connection, key)
            connection.execute(f"DELETE FROM overrides {OF_SERVICE} AND workload = ?", (*key, workload))
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
        """Store an event and return its number; prunes the oldest."""
        with self._database.change() as connection:
            row = (event.at, event.namespace, event.service, event.object, event.type, event.reason, event.message)
            written = connection.execute(f"INSERT INTO events ({_EVENT_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            number = int(written.lastrowid or 0)
            oldest = _nth(_OF_EVENT, MAX_EVENTS_PER_SERVICE)
            key = (event.namespace, event.service)
            connection.execute(f"DELETE FROM events WHERE {_OF_EVENT} AND number <= ({oldest})", (*key, *key))
            connection.execute(f"DELETE FROM events WHERE number <= ({_nth('1', MAX_EVENTS)})")
            return number

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> list[Event]:
        """Return events, oldest first: those following number `after`; with 0 the newest ones."""
        which = f"number > ? AND {_OF_EVENT}" if key else "number > ?"
        sql = f"SELECT {_EVENT_FIELDS}, number FROM events WHERE {which} ORDER BY number"
        values = (after, *(key or ()), limit)
        rows = self._database.rows(f"{sql} {'ASC' if after else 'DESC'} LIMIT ?", values)
        return [Event(*row) for row in (rows if after else reversed(rows))]

    def canaries(self) -> list[CanaryRecord]:
        return [CanaryRecord(*row) for row in self._database.rows(f"{_CANARIES} ORDER BY namespace, name")]

    def canary(self, key: Key) -> CanaryRecord | None:
        rows = self._database.rows(f"{_CANARIES} {OF_SERVICE}", key)
        return CanaryRecord(*rows[0]) if rows else None

    def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        """Store a canary record. Raise Conflict if it is not at `version`."""
        with self._database.change(durable=True) as connection:
            _exists(connection, key)
            row = connection.execute(f"SELECT version FROM canaries {OF_SERVICE}", key).fetchone()
            present = str(row[0]) if row else ""
            if present != version:
                raise Conflict(f"the canary of {'/'.join(key)} was changed in the meantime; check it and retry")
            following = int(present or 0) + 1
            connection.execute("INSERT OR REPLACE INTO canaries VALUES (?, ?, ?, ?)", (*key, state, following))
            return CanaryRecord(*key, state, str(following))

    def port(self, key: Key, kind: str, candidates: Iterable[int]) -> int:
        """Return the service's port of this kind: the stored one, else the first candidate not assigned yet."""
        with self._database.change() as connection:
            _exists(connection, key)
            row = connection.execute(f"SELECT port FROM ports {OF_SERVICE} AND kind = ?", (*key, kind)).fetchone()
            if row:
                return int(row[0])
            taken = {port for (port,) in connection.execute("SELECT port FROM ports")}
            free = next((port for port in candidates if port not in taken), None)
            if free is None:
                raise PlatformError(f"no {kind} port is left for {'/'.join(key)}; delete a service to free one")
            connection.execute("INSERT INTO ports VALUES (?, ?, ?, ?)", (*key, kind, free))
            return free

    def release_port(self, key: Key, kind: str) -> None:
        """Release a port that another process uses; the next `port` call assigns another one."""
        self._one(f"DELETE FROM ports {OF_SERVICE} AND kind = ?", (*key, kind))

    def begin_delete(self, key: Key) -> None:
        with self._database.change(durable=True) as connection:
            _exists(connection, key)
            connection.execute(f"UPDATE services SET deleting = 1 {OF_SERVICE}", key)

    def finish_delete(self, key: Key) -> None:
        """Delete all of a service but its events and its last generation."""
        with self._database.change(durable=True) as connection:
            tombstone = f"INSERT OR REPLACE INTO deleted SELECT namespace, name, generation FROM services {OF_SERVICE}"
            connection.execute(tombstone, key)
            connection.execute(f"DELETE FROM services {OF_SERVICE}", key)

    def _one(self, sql: str, values: Sequence[Json], *, durable: bool = False) -> None:
        with self._database.change(durable=durable) as connection:
            connection.execute(sql, values)


def _exists(connection: sqlite3.Connection, key: Key) -> None:
    if not connection.execute(f"SELECT 1 FROM services {OF_SERVICE}", key).fetchone():
        raise _missing(key)


def _missing(key: Key) -> NotFound:
    return NotFound(f"there is no service {'/'.join(key)}")


def _nth(which: str, count: int) -> str:
    """Return a query for the newest event number beyond `count`; empty if there are fewer."""
    return f"SELECT number FROM events WHERE {which} ORDER BY number DESC LIMIT 1 OFFSET {count}"


class EventRecorder:
    """Records the events that `platformctl events` shows; a failed write, such as on a full disk, is ignored."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(
        self, key: Key, subject: str, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        with suppress(PlatformError):
            self._store.add_event(Event(utc_now(), *key, subject, kind, reason, message))
