"""Configured model paths and URIs → ModelSource by name, on local disk. Blocking; runs in a thread.

Remote models are fetched, and their runtime is imported during the download; a local path costs no import and no copy.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.config import Settings
from pilotlight_predictor.core import backend_table
from pilotlight_predictor.core.threads import ensure_blas_threads, with_deep_stack
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.layout import ModelSource, is_repository, plain_source, scan, with_named_config
from pilotlight_predictor.storage.uri import is_remote

if TYPE_CHECKING:
    from pilotlight_predictor.storage.store_interface import Progress

Fetch = Callable[[str], Path]


class ModelSources:
    """Model sources. `fetch` downloads a remote model, `sync` a whole remote repository; both return the directory."""

    def __init__(self, settings: Settings, fetch: Fetch, sync: Fetch) -> None:
        server = settings.server
        self._settings, self._processes = settings.model, server.workers + server.fronts
        self._example = _example(settings.model.example)
        self._fetch = fetch
        self._sync = sync
        self._warned: set[tuple[str, str]] = set()

    def refresh(self) -> dict[str, ModelSource]:
        """Return the models that exist now. If two repositories have a model of one name, the first wins."""
        sources: dict[str, ModelSource] = {}
        if self._settings.adapters and not self._settings.path:
            raise LoadFailed("model.adapters are of the model of --model-path: set that too, or leave out --adapter")
        if self._settings.path:
            path = self._fetch(self._settings.path)
            if "://" in self._settings.path and self._settings.code:
                from pilotlight_predictor.repository.environment import enter

                # The next fetch finds it in the cache.
                enter(str(path), self._settings.cache_dir, self._processes)
            sources |= {source.name: source for source in self._from_path(path)}
        for repository in self._settings.repositories:
            for source in scan(self._sync(repository)):
                if source.name not in sources:
                    sources[source.name] = source
                elif (source.name, repository) not in self._warned:  # once: polling reads them every few seconds
                    self._warned.add((source.name, repository))
                    message = f"model '{source.name}' is in several repositories; that of {repository} is ignored"
                    log("model.shadowed", message, level="WARNING", model=source.name)
        config_name = self._settings.config_name
        return {name: with_named_config(source, config_name) for name, source in sources.items()}

    def fetch(self, uri: str) -> Path:
        """Return the local path of a file or folder that may be remote."""
        return self._fetch(uri)

    def _adapters(self) -> dict[str, str]:
        return {name: str(self._fetch(path)) for name, path in self._settings.adapters.items()}

    def _from_path(self, path: Path) -> list[ModelSource]:
        """Return one model under the configured name, or all models of a repository (a service of Triton's format)."""
        if is_repository(path):
            sources = scan(path)
            if self._example is not None and len(sources) > 1:
                given = f" = {self._example}" if isinstance(self._example, Path) else ""
                raise LoadFailed(
                    f"model.example{given} applies to one model, but {path} has {len(sources)}: put an "
                    "example.json into the folder of each instead (--example)"
                )
            if self._settings.adapters and len(sources) > 1:
                raise LoadFailed(
                    f"model.adapters apply to one model, but {path} has {len(sources)}: load them by"
                    " POST /v1/load_lora_adapter with its model instead (--adapter)"
                )
            return [replace(source, example=self._example, adapters=self._adapters()) for source in sources]
        source = plain_source(path, self._settings.name or None)
        source = replace(source, example=self._example, adapters=self._adapters())
        version, labels = self._settings.version, self._settings.version_labels
        number = labels.get(f"{source.name}/{version}", labels.get(version))
        return [_select_version(source, version if number is None else str(number))]


def _example(setting: str) -> Path | bytes | None:
    """Return the example of the setting, which is a file or, beginning with a brace, the request itself."""
    if setting.lstrip().startswith("{"):
        return setting.encode()
    return Path(setting).absolute() if setting else None


def _select_version(source: ModelSource, version: str) -> ModelSource:
    """Serve a file as the given version; of a directory with versions serve that one only.

    A label without a number names a file's only version.
    """
    numbered = version.isascii() and version.isdigit() and len(version) <= 18
    if version == "latest" or (source.plain and version and not version.isdigit()):
        return source
    if not numbered:
        raise LoadFailed(
            f"model.version = '{version}', must be latest or a number (--model-version), or a label (--version-label)"
        )
    number = int(version)
    if source.plain:
        return replace(source, versions={number: source.versions[1]})
    if number not in source.versions:
        known = ", ".join(map(str, sorted(source.versions)))
        raise LoadFailed(f"model.version = {number} is not in {source.model_dir}, which has {known} (--model-version)")
    return replace(source, versions={number: source.versions[number]})


class ModelFetcher:
    """Fetcher of remote models. `import_s`: duration of imports during the first fetch; 0 if nothing was fetched."""

    def __init__(
        self, cache_dir: str, on_progress: "Callable[[Progress], None]", pins: Mapping[str, Any] | None = None
    ) -> None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._cache = Path(cache_dir) if cache_dir else base / "pilotlight"
        self._on_progress = on_progress
        self._pins = pins or {}
        self._prepared: set[str] = set()
        self.import_s = 0.0

    def model(self, uri: str) -> Path:
        """Return the local path of one model, a file or a directory."""
        if "://" not in uri:
            return Path(uri)
        pin = None
        if uri in self._pins and is_remote(uri):
            from pilotlight_predictor.storage.pins import cached_pin, parse_pin

            pin = parse_pin(self._pins[uri], redact_uri(uri))
            if (copy := cached_pin(uri, self._cache, pin)) is not None:
                return copy
        self._prepare_in_background(uri)
        from pilotlight_predictor.storage.fetcher import fetch
        from pilotlight_predictor.storage.store_interface import FetchOptions

        return fetch(uri, self._cache, self._on_progress, options=FetchOptions(pin=pin))

    def repository(self, uri: str) -> Path:
        """Return a local directory of a whole repository, synchronized by every call."""
        if "://" not in uri:
            return Path(uri)
        import hashlib

        from pilotlight_predictor.storage.fetcher import fetch
        from pilotlight_predictor.storage.sync import sync_repository

        if not is_remote(uri):
            return fetch(uri, self._cache)
        self._prepare_in_background(uri)
        directory = self._cache / "repositories" / hashlib.sha256(uri.encode()).hexdigest()[:16]
        sync_repository(uri, directory, self._on_progress)
        return directory

    def _prepare_in_background(self, uri: str) -> None:
        """Import runtimes in a thread, once per URI; a failure is reported by the load."""
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
            log("runtime.not_ahead", f"no runtime was imported before the model: {error}", level="DEBUG")


def file_names(uri: str) -> list[str]:
    """Return the file names at a URI: its own if that has a known ending or is an archive, else by a listing."""
    from pilotlight_predictor.storage.fetcher import listing
    from pilotlight_predictor.storage.uri import is_archive, parse

    name = parse(uri).filename
    if backend_table.backend_for_file(Path(name)) is not None or is_archive(name):
        return [name]
    return [entry.path.rpartition("/")[2] for entry in listing(uri)]


def backends_for(names: Iterable[str]) -> list[backend_table.BackendEntry]:
    """Return the backends of these files, each once."""
    return list(dict.fromkeys(row for name in names if (row := backend_table.backend_for_file(Path(name))) is not None))


def prepare(row: backend_table.BackendEntry) -> None:
    """Import the backend's library, the slow part of many cold starts."""
    module = backend_table.module(row)
    if row.numpy:
        ensure_blas_threads()
    if hasattr(module, "prepare"):
        module.prepare()
