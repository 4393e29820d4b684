"""Canary records in the store: one per service, updated with optimistic locking by version."""

# ruff: noqa: S608 - the parts of each statement are constants of this module

import sqlite3
from typing import Final

from pilotlight.errors import Conflict
from pilotlight.targets.local.store.database import Database
from pilotlight.targets.target import CanaryRecord, Key

_OF: Final = "WHERE namespace = ? AND name = ?"
_ALL: Final = "SELECT namespace, name, state, version FROM canaries"


def read(database: Database, key: Key | None = None) -> list[CanaryRecord]:
    """Return the record of one service, or all."""
    rows = database.rows(f"{_ALL} {_OF}", key) if key else database.rows(f"{_ALL} ORDER BY namespace, name")
    return [CanaryRecord(namespace, name, state, str(version)) for namespace, name, state, version in rows]


def save(connection: sqlite3.Connection, key: Key, state: str, version: str) -> CanaryRecord:
    """Store a record within the caller's transaction. Raise Conflict if it is not at `version`."""
    row = connection.execute(f"SELECT version FROM canaries {_OF}", key).fetchone()
    present = str(row[0]) if row else ""
    if present != version:
        raise Conflict(f"the canary of {'/'.join(key)} was changed meanwhile; look at it, and try again")
    following = int(present or 0) + 1
    connection.execute("INSERT OR REPLACE INTO canaries VALUES (?, ?, ?, ?)", (*key, state, following))
    return CanaryRecord(*key, state, str(following))
