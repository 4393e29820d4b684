"""Backup and restore of the platform's state: one SQLite file, complete without the files that lie beside it."""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets.local.store.schema import MIGRATIONS, check, migrate, translated_errors

SIDE_FILES: Final = ("-wal", "-shm")
_COUNT: Final = "SELECT count(*) FROM services"


def back_up(database: Path, file: Path) -> int:
    """Write the state to a new file, also while the platform runs; return the number of services in it."""
    if not database.exists():
        raise PlatformError(f"{database}: nothing to back up; deploy something first")
    if file.exists():
        raise UsageError(f"{file} exists; choose another name for the backup")
    with translated_errors(file):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # documents may hold secrets
    try:
        with closing(sqlite3.connect(file, isolation_level=None)) as copy:
            with translated_errors(database), closing(_open_to_read(database)) as source:
                check(source)
                source.backup(copy)
            with translated_errors(file):
                copy.execute("PRAGMA journal_mode = DELETE")  # else the copy would want a -wal of its own
                return int(copy.execute(_COUNT).fetchone()[0])
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def count_services(database: Path) -> int:
    """Return the number of services in a database, which is only read. Raise PlatformError for what is wrong."""
    with translated_errors(database), closing(_open_to_read(database)) as connection:
        check(connection)
        _check_version(connection, database)
        return int(connection.execute(_COUNT).fetchone()[0])


def restore(file: Path, database: Path, suffix: str) -> tuple[int, Path | None]:
    """Put a backup in the place of the database; return the number of its services and where the replaced one is.

    The backup is copied and checked first, with its -wal where it has one; if it cannot be used, nothing changes. Call
    it while no control process runs.
    """
    draft = database.with_name(f"{database.name}.restored")
    remove(draft)
    try:
        with translated_errors(file, "use another backup"):
            _copy_private(file, draft)
            with suppress(FileNotFoundError):
                _copy_private(Path(f"{file}-wal"), Path(f"{draft}-wal"))
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                check(connection)
                _check_version(connection, file)
                connection.execute("PRAGMA journal_mode = DELETE")
                migrate(connection, str(file))
                services = int(connection.execute(_COUNT).fetchone()[0])
        replaced = set_aside(database, suffix)
        draft.replace(database)
        return services, replaced
    finally:
        remove(draft)


def set_aside(database: Path, suffix: str) -> Path | None:
    """Rename a database and the files beside it; return its new place, None: there was none."""
    target = database.with_name(f"{database.name}.{suffix}")
    with translated_errors(database):
        for side in SIDE_FILES:
            with suppress(FileNotFoundError):
                Path(f"{database}{side}").replace(f"{target}{side}")
        with suppress(FileNotFoundError):
            database.replace(target)
            return target
    return None


def remove(database: Path) -> None:
    for side in ("", *SIDE_FILES, "-journal"):
        Path(f"{database}{side}").unlink(missing_ok=True)


def _copy_private(source: Path, target: Path) -> None:
    with source.open("rb") as reading, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as writing:
        shutil.copyfileobj(reading, writing)


def _open_to_read(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version == 0 or not {"services", "releases", "revisions"} <= tables:
        raise PlatformError(f"{path}: it is not a platform backup; use a file from platformctl backup")
    if version > len(MIGRATIONS):
        message = f"{path} was written by a newer Pilotlight (version {version} of the file, this one reads up to"
        raise PlatformError(f"{message} {len(MIGRATIONS)}); install that version")
