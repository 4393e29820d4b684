"""SQLite file of the store: its migrations (folder `migrations`), transactions, and the records read from it.

A release is one deploy; the newest one is the service's specification. A revision refers to the last release that
contained it, which is kept as long as the revision.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal

from msgspec import json

from pilotlight.errors import PlatformError
from pilotlight.targets.target import Key

# Statements of each `N_NAME.sql`, in order; `user_version` counts those of a file.
MIGRATIONS: Final[tuple[Sequence[str], ...]] = tuple(
    file.read_text().strip().removesuffix(";").split(";\n")
    for file in sorted(Path(__file__).with_name("migrations").glob("*.sql"))
)
# Only one process writes; an external tool may hold a lock for a moment.
BUSY_S: Final = 2.0
CHECK_S: Final = 5.0  # for quick_check, which reads the whole file; a platform's state takes milliseconds
_STEPS_PER_CHECK: Final = 10_000  # of SQLite's virtual machine, a few milliseconds
FRESH_START: Final = (
    "restore a backup: platformctl restore FILE, or start with nothing deployed: platformctl up --forget"
)
_CAUSES: Final = {
    "SQLITE_FULL": "the disk is full; free some space and retry",
    "SQLITE_BUSY": "another program holds it; stop that program and retry",
    "SQLITE_LOCKED": "another program holds it; stop that program and retry",
    "SQLITE_READONLY": "it cannot be written; make it writable for this user",
    "SQLITE_CANTOPEN": "it cannot be opened; check that its folder exists and is writable for this user",
    "SQLITE_NOTADB": "it is not a Pilotlight database; {fix}",
    "SQLITE_CORRUPT": "it is damaged; {fix}",
    "SQLITE_IOERR": "reading or writing failed; check that its disk works and has free space, then retry",
}
Json = Any
Verification = Literal["unknown", "unverified", "failing", "verified"]  # by the first answers of a revision
Manifests = list[dict[str, Json]]


def migrate(connection: sqlite3.Connection, path: str, steps: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Migrate to the version of this program, in one transaction. Raise PlatformError for a newer file."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(steps):
        message = f"{path} was written by a newer Pilotlight (version {version} of the file, this one reads up to"
        fix = "install that version, or set PILOTLIGHT_HOME to another folder"
        raise PlatformError(f"{message} {len(steps)}); {fix}")
    if version == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    if int(connection.execute("PRAGMA user_version").fetchone()[0]) == version:  # else another process was faster
        for statement in (statement for step in steps[version:] for statement in step):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
    connection.execute("COMMIT")


def check(connection: sqlite3.Connection, seconds: float = CHECK_S) -> None:
    """Check the structure of the whole file; one that takes longer than `seconds` passes unchecked.

    Raise sqlite3.DatabaseError for a damaged file.
    """
    until = monotonic() + seconds
    connection.set_progress_handler(lambda: monotonic() > until, _STEPS_PER_CHECK)
    try:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_INTERRUPT":
            raise
        verdict = "ok"
    finally:
        connection.set_progress_handler(None, 0)
    if verdict != "ok":
        damage = sqlite3.DatabaseError(verdict)
        damage.sqlite_errorname = "SQLITE_CORRUPT"
        raise damage


@contextmanager
def translated_errors(path: Path, fix: str = FRESH_START) -> Iterator[None]:
    """Raise SQLite's errors as PlatformError with the file, the cause and the fix; `fix` is for a damaged file."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        # Extended codes (SQLITE_IOERR_WRITE) begin with the name of their family.
        known = (cause for family, cause in _CAUSES.items() if name == family or name.startswith(f"{family}_"))
        cause = next(known, f"{error}; this is a bug")
        raise PlatformError(f"{path}: {cause.replace('{fix}', fix)}") from error
    except OSError as error:
        raise PlatformError(f"{path}: {error.strerror or error}; check its folder") from error


class Database:
    """One connection, for the thread that opened it. `steps` are the migrations, `fix` is for a damaged file.

    Errors are raised as PlatformError. With write-ahead logging a crash leaves the state before or after a change.
    `durable` ones are also synced to disk and survive a power failure; others may be lost by one, but never torn. A
    durable change ends with a checkpoint: the file alone holds everything up to it, so a copy of it is a backup.
    """

    def __init__(self, path: Path, steps: Sequence[Sequence[str]] = MIGRATIONS, fix: str = FRESH_START) -> None:
        self._path, self._fix = path, fix
        with translated_errors(path, fix):
            # Documents may hold secrets; SQLite gives the -wal and -shm files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._inode = path.stat().st_ino
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute("PRAGMA foreign_keys = ON")
                check(self._connection)
                migrate(self._connection, str(path), steps)
                self._checkpoint()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with translated_errors(self._path, self._fix):
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def change(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Run the body in one transaction; roll it back on any exception."""
        with translated_errors(self._path, self._fix):
            if durable:
                self._check_present()
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
            if durable:
                self._checkpoint()

    def _check_present(self) -> None:
        """Raise PlatformError if the file was removed or replaced: SQLite would write on to the removed one."""
        with suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                return
        raise PlatformError(f"{self._path}: it was removed or replaced; run platformctl down, then up")

    def _checkpoint(self) -> None:
        """Move the write-ahead log into the file. What a reader or a full disk prevents is left to the next one."""
        self._connection.execute("PRAGMA busy_timeout = 0")  # a reader must not delay the event loop
        with suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")


@dataclass(frozen=True, slots=True)
class StoredService:
    """Manifests are decoded on access, so that a thousand idle services use little memory."""

    namespace: str
    name: str
    generation: int
    document: str
    created_at: str
    updated_at: str
    deleting: bool
    encoded: bytes = field(repr=False)  # manifests, as JSON
    catalogue: tuple[str, ...] = ()
    overrides: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)  # by workload

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def manifests(self) -> Manifests:
        return json.decode(self.encoded, type=Manifests)


@dataclass(frozen=True, slots=True)
class StoredRevision:
    """Stored revision. `manifests` are its workload and the objects that it needs to be interpreted again."""

    namespace: str
    service: str
    workload: str
    name: str
    generation: int  # of the last release that contained it
    created_at: str
    first_ready_at: str  # empty: never
    failed: str  # why it cannot be started; empty: it can
    verification: Verification
    answer_failure: str  # why its first answers failed; empty: they did not
    encoded: bytes = field(repr=False)
    gpu_peak: int = 0  # most bytes of one GPU that a replica has used; 0: not measured

    @property
    def manifests(self) -> Manifests:
        return json.decode(self.encoded, type=Manifests)
