"""`fetch_into`: fills a plain directory, for containers that only mount it and know nothing of a cache.

`.pilotlight-partial/` is there while a download runs; `.pilotlight-source.json` says what the directory holds, so that
a restarted container downloads nothing and a changed model leaves no stale file behind.
"""

import json
import os
import shutil
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.cache import cache_key, pinned_revision, revision_of
from pilotlight_predictor.storage.fetching import DEFAULTS, assemble, listed, located, until_stable
from pilotlight_predictor.storage.interface import FetchOptions, ProgressCallback
from pilotlight_predictor.storage.lock import locked
from pilotlight_predictor.storage.uri import Location

PARTIAL, SOURCE = ".pilotlight-partial", ".pilotlight-source.json"


class Held(NamedTuple):
    """What a directory holds of a model, whichever run brought it."""

    files: int
    bytes: int


def held(directory: Path) -> Held:
    """Counts the files that `fetch_into` put there and that are still there; those of others are passed over."""
    found = [directory / file for file in _source(directory).get("files", [])]
    sizes = [file.stat().st_size for file in found if file.is_file()]
    return Held(len(sizes), sum(sizes))


def fetch_into(
    uri: str, directory: Path, progress: ProgressCallback | None = None, *, options: FetchOptions = DEFAULTS
) -> Path:
    """A prefix or an archive fills the directory and returns it; one file is put there and its path returned."""
    location = located(uri, options)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            return until_stable(lambda: _fetch_into(location, directory, progress, options), location)
    except OSError as error:
        raise LoadFailed(f"{location.shown}: cannot be put into {directory} ({error})") from error


def _fetch_into(location: Location, directory: Path, progress: ProgressCallback | None, options: FetchOptions) -> Path:
    pin = pinned_revision(location)
    before = _source(directory)
    if pin and _holds(directory, before, cache_key(location, pin)):
        return directory / str(before["content"])
    store, contents = listed(location, options)
    revision = cache_key(location, pin or revision_of(contents, time_ns()))
    if _holds(directory, before, revision):
        return directory / str(before["content"])
    partial = directory / PARTIAL / revision
    partial.mkdir(parents=True, exist_ok=True)
    name = assemble(store, contents, location, partial, options, progress)
    content = name if (partial / name).is_file() else "."
    _place(partial, name, directory, before.get("files", []), {"revision": revision, "content": content})
    shutil.rmtree(directory / PARTIAL)
    return directory / content


def _place(partial: Path, name: str, directory: Path, stale: list[str], source: dict[str, Any]) -> None:
    """Without its source file a directory counts as unfilled: it is away while files change and comes back last."""
    (directory / SOURCE).unlink(missing_ok=True)
    root = partial / name
    found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    files = [path.relative_to(partial if root.is_file() else root).as_posix() for path in found]
    for gone in set(stale) - set(files):
        (directory / gone).unlink(missing_ok=True)
    for path, file in zip(found, files, strict=True):
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, directory / file)
    (directory / SOURCE).write_text(json.dumps({**source, "files": files}))


def _source(directory: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((directory / SOURCE).read_text())
    except (OSError, ValueError):
        return {}
    return found


def _holds(directory: Path, source: dict[str, Any], revision: str) -> bool:
    return source.get("revision") == revision and all((directory / file).is_file() for file in source["files"])
