"""The file itself: opened, moved to the present version, and every change of it one transaction.

Write-ahead logging leaves the state before or after a change whenever the process dies. A change that a user was told
of is also flushed to the disk (`durable`), so that it outlives a power cut; the rest may be lost to one, never torn.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.local.store.schema import MIGRATIONS, migrate

# Only one process writes; somebody who looks into the file with a tool of his own holds it for moments.
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
    """One connection, for the thread that opened it. `steps` lead to the present version of the file."""

    def __init__(self, path: Path, steps: Sequence[Sequence[str]] = MIGRATIONS) -> None:
        self._path = path
        self._steps = steps
        with self._told():
            # Documents may hold secrets; the companions of the file get its mode.
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
        with self._told():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def change(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """All of it or nothing; whatever went wrong, the next change starts afresh."""
        with self._told():
            if durable:
                self._connection.execute("PRAGMA synchronous = FULL")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                # A full disk may have taken the transaction back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if durable:
                    self._connection.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite says as one sentence that names the file and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise PlatformError(f"{self._path}: {_cause(error)}") from error
        except OSError as error:
            raise PlatformError(f"{self._path}: {error.strerror or error}; check its folder") from error


def _cause(error: sqlite3.Error) -> str:
    """Extended codes (SQLITE_IOERR_WRITE) carry the name of their family in front."""
    name = getattr(error, "sqlite_errorname", "")
    known = (cause for family, cause in _CAUSES.items() if name == family or name.startswith(f"{family}_"))
    return next(known, f"{error}; this is a defect of ours")
