"""Fetching of remote models, and import of their runtime during the download.

Blocking; ModelSources calls it in a thread. A local path costs no import and no copy.
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
from pilotlight_predictor.threads import with_deep_stack

if TYPE_CHECKING:
    from pilotlight_predictor.storage import Progress


class ModelFetcher:
    """`import_s`: duration of the imports during the first fetch; 0 if nothing was fetched."""

    def __init__(self, cache_dir: str, on_progress: "Callable[[Progress], None]") -> None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._cache = Path(cache_dir) if cache_dir else base / "pilotlight"
        self._on_progress = on_progress
        self._prepared: set[str] = set()
        self.import_s = 0.0

    def model(self, uri: str) -> Path:
        """Return the local path of one model, a file or a directory."""
        if "://" not in uri:
            return Path(uri)
        from pilotlight_predictor import storage

        self._prepare_in_background(uri)
        return storage.fetch(uri, self._cache, self._on_progress)

    def repository(self, uri: str) -> Path:
        """Return a local directory of a whole repository, synchronized by every call."""
        if "://" not in uri:
            return Path(uri)
        from pilotlight_predictor import storage

        if not storage.is_remote(uri):
            return storage.fetch(uri, self._cache)
        import hashlib

        self._prepare_in_background(uri)
        directory = self._cache / "repositories" / hashlib.sha256(uri.encode()).hexdigest()[:16]
        storage.sync_repository(uri, directory, self._on_progress)
        return directory

    def _prepare_in_background(self, uri: str) -> None:
        """Import runtimes in a thread, once per URI; a failure is reported by the load."""
        from pilotlight_predictor.storage import is_remote

        if is_remote(uri) and uri not in self._prepared:
            self._prepared.add(uri)
            Thread(
                target=with_deep_stack, args=(partial(self._prepare, uri),), name="pilotlight-import", daemon=True
            ).start()

    def _prepare(self, uri: str) -> None:
        try:
            rows = backends_for(file_names(uri))
            started = perf_counter()
            for row in rows:
                prepare(row)
            self.import_s = max(self.import_s, perf_counter() - started)
        except Exception as error:
            log("runtime.not_ahead", f"no runtime was imported ahead of the model: {error}", level="DEBUG")


def file_names(uri: str) -> list[str]:
    """Return the file names at a URI: its own if that has a known ending or is an archive, else by a listing."""
    from pilotlight_predictor.storage import listing
    from pilotlight_predictor.storage.uri import is_archive, parse

    name = parse(uri).filename
    if backends.backend_for_file(name) is not None or is_archive(name):
        return [name]
    return [entry.path.rpartition("/")[2] for entry in listing(uri)]


def backends_for(names: Iterable[str]) -> list[backends.BackendEntry]:
    """Return the backends of these files, each once."""
    return list(dict.fromkeys(row for name in names if (row := backends.backend_for_file(name)) is not None))


def prepare(row: backends.BackendEntry) -> None:
    """Import the backend's library, the slow part of many cold starts."""
    module = backends.module(row)
    if row.numpy:
        numpy_threads.restore_once()
    if hasattr(module, "prepare"):
        module.prepare()
