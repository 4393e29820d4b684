"""Tables of the store as migrations. A released migration never changes.

`user_version` counts the migrations applied to a file. A release is one deploy; the newest one is the service's
specification. A revision refers to the last release that contained it, which is kept as long as the revision.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from pilotlight.errors import PlatformError

FIRST: Final = (
    """CREATE TABLE services (
        namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
        created_at TEXT NOT NULL, updated_at TEXT NOT NULL, deleting INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (namespace, name)) WITHOUT ROWID""",
    # Generations continue after a delete: a plan made before it must not match a service created again.
    """CREATE TABLE deleted (
        namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
        PRIMARY KEY (namespace, name)) WITHOUT ROWID""",
    """CREATE TABLE releases (
        namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, at TEXT NOT NULL,
        document TEXT NOT NULL, catalogue BLOB NOT NULL, manifests BLOB NOT NULL, note TEXT NOT NULL,
        PRIMARY KEY (namespace, name, generation),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE)""",
    """CREATE TABLE revisions (
        namespace TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, revision TEXT NOT NULL,
        generation INTEGER NOT NULL, manifests BLOB NOT NULL, created_at TEXT NOT NULL,
        first_ready_at TEXT NOT NULL DEFAULT '', failed TEXT NOT NULL DEFAULT '',
        age_s REAL NOT NULL DEFAULT 0, age_at TEXT NOT NULL,
        PRIMARY KEY (namespace, name, workload, revision),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE)""",
    """CREATE TABLE overrides (
        namespace TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (namespace, name, workload),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID""",
    """CREATE TABLE ports (
        namespace TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, port INTEGER NOT NULL UNIQUE,
        PRIMARY KEY (namespace, name, kind),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID""",
    "CREATE TABLE replicas (id TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL)",
    """CREATE TABLE events (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, namespace TEXT NOT NULL, service TEXT NOT NULL,
        object TEXT NOT NULL, type TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL)""",
    "CREATE INDEX events_by_service ON events (namespace, service, number)",
)

SECOND: Final = (
    """CREATE TABLE canaries (
        namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (namespace, name),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID""",
)

MIGRATIONS: Final[tuple[Sequence[str], ...]] = (FIRST, SECOND)


def migrate(connection: sqlite3.Connection, path: str, steps: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Migrate to the version of this program, in one transaction. Raise PlatformError for a newer file."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(steps):
        message = f"{path} was written by a newer Pilotlight (version {version} of the file, this one reads up to"
        raise PlatformError(
            f"{message} {len(steps)}); install that one again, or set PILOTLIGHT_HOME to another folder"
        )
    if version == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    if int(connection.execute("PRAGMA user_version").fetchone()[0]) == version:  # else another process was faster
        for statement in (statement for step in steps[version:] for statement in step):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
    connection.execute("COMMIT")
