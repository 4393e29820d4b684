"""SQLite file of the store: opened, migrated, and changed in transactions.

With write-ahead logging a crash leaves the state before or after a change. `durable` changes, which are acknowledged to
users, are also synced to disk and survive a power failure; others may be lost by one, but never torn.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.local.store.schema import MIGRATIONS, migrate

# Only one process writes; an external tool may hold a lock for a moment.
BUSY_S: Final = 2.0
_CAUSES: Final = {
    "SQLITE_FULL": "the disk is full; make room there, then run it again",
    "SQLITE_BUSY": "another program holds it; end that program, then run it again",
    "SQLITE_LOCKED": "another program holds it; end that program, then run it again",
    "SQLITE_READONLY": "it cannot be written; make it writable for this user",
    "SQLITE_CANTOPEN": "it cannot be opened; check that its folder exists and is writable for this user",
    "SQLITE_NOTADB": "it is no database of Pilotlight; move it away, or set PILOTLIGHT_HOME to another folder",
    "SQLITE_CORRUPT": "it is damaged; move it away and deploy again, or restore it from a backup",
    "SQLITE_IOERR": "reading or writing failed; make sure that its disk has room and works, then run it again",
}


class Database:
    """One connection, for the thread that opened it. `steps` are the migrations. Errors are raised as PlatformError."""

    def __init__(self, path: Path, steps: Sequence[Sequence[str]] = MIGRATIONS) -> None:
        self._path = path
        self._steps = steps
        with self._translated_errors():
            # Documents may hold secrets; SQLite gives the -wal and -shm files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        migrate(self._connection, str(self._path), self._steps)

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._translated_errors():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def change(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Run the body in one transaction; roll it back on any exception."""
        with self._translated_errors():
            if durable:
                self._connection.execute("PRAGMA synchronous = FULL")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                # A full disk may have rolled the transaction back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if durable:
                    self._connection.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise SQLite's errors as PlatformError with the file, the cause and the fix."""
        try:
            yield
        except sqlite3.Error as error:
            raise PlatformError(f"{self._path}: {_cause(error)}") from error
        except OSError as error:
            raise PlatformError(f"{self._path}: {error.strerror or error}; check its folder") from error


def _cause(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    # Extended codes (SQLITE_IOERR_WRITE) begin with the name of their family.
    known = (cause for family, cause in _CAUSES.items() if name == family or name.startswith(f"{family}_"))
    return next(known, f"{error}; this is a defect of ours")
