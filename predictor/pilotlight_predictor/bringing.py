"""Brings models here from where they are stored, and imports their runtime while the bytes are still on their way.

Blocking; `Sources` calls it in a thread. A path on this machine costs no import and no copy.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING

from pilotlight_predictor import backends, numpy_threads
from pilotlight_predictor.logs import log
from pilotlight_predictor.threads import with_room

if TYPE_CHECKING:
    from pilotlight_predictor.storage import Progress


class Bringing:
    """`import_s` is what importing runtimes took beside the first fetch; 0 when nothing was fetched."""

    def __init__(self, cache_dir: str, on_progress: "Callable[[Progress], None]") -> None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._cache = Path(cache_dir) if cache_dir else base / "pilotlight"
        self._on_progress = on_progress
        self._prepared: set[str] = set()
        self.import_s = 0.0

    def model(self, uri: str) -> Path:
        """One model: a file or a directory."""
        if "://" not in uri:
            return Path(uri)
        from pilotlight_predictor import storage

        self._prepare_beside(uri)
        return storage.fetch(uri, self._cache, self._on_progress)

    def repository(self, uri: str) -> Path:
        """A whole repository, as a directory that follows it with every call."""
        if "://" not in uri:
            return Path(uri)
        from pilotlight_predictor import storage

        if not storage.is_remote(uri):
            return storage.fetch(uri, self._cache)
        import hashlib

        self._prepare_beside(uri)
        directory = self._cache / "repositories" / hashlib.sha256(uri.encode()).hexdigest()[:16]
        storage.sync_repository(uri, directory, self._on_progress)
        return directory

    def _prepare_beside(self, uri: str) -> None:
        """Once per URI; its failure is the load's to report."""
        from pilotlight_predictor.storage import is_remote

        if is_remote(uri) and uri not in self._prepared:
            self._prepared.add(uri)
            Thread(target=with_room, args=(partial(self._prepare, uri),), name="pilotlight-import", daemon=True).start()

    def _prepare(self, uri: str) -> None:
        try:
            rows = rows_for(file_names(uri))
            started = perf_counter()
            for row in rows:
                prepare(row)
            self.import_s = max(self.import_s, perf_counter() - started)
        except Exception as error:
            log("runtime.not_ahead", f"no runtime was imported ahead of the model: {error}", level="DEBUG")


def file_names(uri: str) -> list[str]:
    """What the URI holds: told by its own ending, else by a listing. What an archive holds is known only later."""
    from pilotlight_predictor.storage import listing
    from pilotlight_predictor.storage.uri import is_archive, parse

    name = parse(uri).filename
    if backends.row_for_file(name) is not None or is_archive(name):
        return [name]
    return [entry.path.rpartition("/")[2] for entry in listing(uri)]


def rows_for(names: Iterable[str]) -> list[backends.Row]:
    """The backends that these files will need, each once."""
    return list(dict.fromkeys(row for name in names if (row := backends.row_for_file(name)) is not None))


def prepare(row: backends.Row) -> None:
    """Imports the backend's library, the slow part of many a cold start."""
    module = backends.module(row)
    if row.numpy:
        numpy_threads.give_back()
    if hasattr(module, "prepare"):
        module.prepare()
