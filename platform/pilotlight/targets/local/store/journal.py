"""Events in the store: numbered, immutable, bounded per service and in total."""

# ruff: noqa: S608 - the parts of each statement are constants of this module

import sqlite3
from typing import Final

from pilotlight.targets.local.store.database import Database
from pilotlight.targets.target import Event, Key

MAX_EVENTS_PER_SERVICE: Final = 1_000
MAX_EVENTS: Final = 10_000

_FIELDS: Final = "at, namespace, service, object, type, reason, message"
_OF: Final = "namespace = ? AND service = ?"


def add(connection: sqlite3.Connection, event: Event) -> int:
    written = connection.execute(
        f"INSERT INTO events ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (event.at, event.namespace, event.service, event.object, event.type, event.reason, event.message),
    )
    number = int(written.lastrowid or 0)
    key = (event.namespace, event.service)
    connection.execute(
        f"DELETE FROM events WHERE {_OF} AND number <= ({_nth(_OF, MAX_EVENTS_PER_SERVICE)})", (*key, *key)
    )
    connection.execute(f"DELETE FROM events WHERE number <= ({_nth('1', MAX_EVENTS)})")
    return number


def _nth(which: str, count: int) -> str:
    """Return a query for the newest event number beyond `count`; empty if there are fewer."""
    return f"SELECT number FROM events WHERE {which} ORDER BY number DESC LIMIT 1 OFFSET {count}"


def read(database: Database, key: Key | None, after: int, limit: int) -> list[Event]:
    which = f"number > ? AND {_OF}" if key else "number > ?"
    order = "ASC" if after else "DESC"
    rows = database.rows(
        f"SELECT {_FIELDS}, number FROM events WHERE {which} ORDER BY number {order} LIMIT ?",
        (after, *(key or ()), limit),
    )
    return [Event(*row) for row in (rows if after else reversed(rows))]
