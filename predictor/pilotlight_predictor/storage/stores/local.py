"""Paths and `file://`: used in place by `fetch`, copied by `fetch_into` and `sync_repository`."""

import os
from collections.abc import Iterator
from pathlib import Path

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import MIB, Contents, Entry, FetchOptions, UriNotFound
from pilotlight_predictor.storage.uri import Location


class LocalStore:
    def __init__(self, path: Path) -> None:
        self._path = path

    def contents(self) -> Contents:
        if self._path.is_file():
            return Contents((_entry(self._path, self._path.name),), single=True)
        files = sorted(path for path in self._path.rglob("*") if path.is_file())
        if not files:
            raise UriNotFound(f"{self._path}: no file is below this directory")
        return Contents(tuple(_entry(path, path.relative_to(self._path).as_posix()) for path in files))

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        try:
            with open(entry.key, "rb") as file:
                file.seek(start)
                while piece := file.read(min(MIB, end - file.tell())):
                    yield piece
        except OSError as error:
            raise LoadFailed(f"{entry.key}: cannot be read ({error.strerror})") from error


def _entry(path: Path, name: str) -> Entry:
    status = os.stat(path)
    return Entry(path=name, size=status.st_size, etag=f"{status.st_mtime_ns:x}-{status.st_ino:x}", key=str(path))


def existing_path(location: Location) -> Path:
    path = Path(location.rest).expanduser()
    if not path.exists():
        raise UriNotFound(f"{path}: no such file or directory; give a path that exists or a URI such as s3://…")
    return path


def open_store(location: Location, options: FetchOptions) -> LocalStore:
    return LocalStore(existing_path(location))
