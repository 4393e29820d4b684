"""`fetch_into`: download into a plain directory, for containers that mount it without a cache.

`.pilotlight-partial/` exists during a download; `.pilotlight-source.json` records the content, so that a restarted
container downloads nothing and a changed model leaves no stale file behind.
"""

import json
import os
import shutil
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.cache import cache_key, pinned_revision, revision_of
from pilotlight_predictor.storage.fetching import DEFAULTS, assemble, locate, open_and_list, retry_while_changing
from pilotlight_predictor.storage.interface import FetchOptions, ProgressCallback
from pilotlight_predictor.storage.lock import file_lock
from pilotlight_predictor.storage.uri import Location

PARTIAL, SOURCE = ".pilotlight-partial", ".pilotlight-source.json"


class FetchedFiles(NamedTuple):
    """Number and size of fetched files in a directory, from any run."""

    files: int
    bytes: int


def fetched_files(directory: Path) -> FetchedFiles:
    """Count the files of `fetch_into` that still exist; other files are ignored."""
    files = [directory / file for file in _source(directory).get("files", [])]
    sizes = [file.stat().st_size for file in files if file.is_file()]
    return FetchedFiles(len(sizes), sum(sizes))


def fetch_into(
    uri: str, directory: Path, progress: ProgressCallback | None = None, *, options: FetchOptions = DEFAULTS
) -> Path:
    """Fill the directory from a prefix or an archive and return it; for a single file return its path."""
    location = locate(uri, options)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with file_lock(directory):
            return retry_while_changing(lambda: _fetch_into(location, directory, progress, options), location)
    except OSError as error:
        raise LoadFailed(f"{location.redacted}: cannot be put into {directory} ({error})") from error


def _fetch_into(location: Location, directory: Path, progress: ProgressCallback | None, options: FetchOptions) -> Path:
    pin = pinned_revision(location)
    before = _source(directory)
    if pin and _is_current(directory, before, cache_key(location, pin)):
        return directory / str(before["content"])
    store, contents = open_and_list(location, options)
    revision = cache_key(location, pin or revision_of(contents, time_ns()))
    if _is_current(directory, before, revision):
        return directory / str(before["content"])
    partial = directory / PARTIAL / revision
    partial.mkdir(parents=True, exist_ok=True)
    name = assemble(store, contents, location, partial, options, progress)
    content = name if (partial / name).is_file() else "."
    _install(partial, name, directory, before.get("files", []), {"revision": revision, "content": content})
    shutil.rmtree(directory / PARTIAL)
    return directory / content


def _install(partial: Path, name: str, directory: Path, stale: list[str], source: dict[str, Any]) -> None:
    """Move files in and remove stale ones. The source file is written last: without it the directory counts as
    unfilled."""
    (directory / SOURCE).unlink(missing_ok=True)
    root = partial / name
    paths = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    files = [path.relative_to(partial if root.is_file() else root).as_posix() for path in paths]
    for gone in set(stale) - set(files):
        (directory / gone).unlink(missing_ok=True)
    for path, file in zip(paths, files, strict=True):
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, directory / file)
    (directory / SOURCE).write_text(json.dumps({**source, "files": files}))


def _source(directory: Path) -> dict[str, Any]:
    try:
        source: dict[str, Any] = json.loads((directory / SOURCE).read_text())
    except (OSError, ValueError):
        return {}
    return source


def _is_current(directory: Path, source: dict[str, Any], revision: str) -> bool:
    return source.get("revision") == revision and all((directory / file).is_file() for file in source["files"])
