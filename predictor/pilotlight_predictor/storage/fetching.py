"""`fetch`: from a URI to a complete path in the shared cache. The steps before it are here for its siblings too.

located (URI + options) ─> listed (store, contents) ─> assemble (download, unpack) ─> cache | into | sync
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, time_ns
from typing import TypeVar

from pilotlight.contract import ENV_CACHE_DIR
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.cache import build_once, cache_key, cached, pinned_revision, revision_of
from pilotlight_predictor.storage.checks import check_file, check_size, total_size
from pilotlight_predictor.storage.interface import (
    Changed,
    Contents,
    Entry,
    FetchOptions,
    Progress,
    ProgressCallback,
    Store,
)
from pilotlight_predictor.storage.retry import retried
from pilotlight_predictor.storage.stores import open_store
from pilotlight_predictor.storage.stores.local import existing_path
from pilotlight_predictor.storage.transfer import download
from pilotlight_predictor.storage.uri import (
    Location,
    checked_sha256,
    is_archive,
    parse,
    safe_relative,
    without_archive_ending,
)

T = TypeVar("T")
DEFAULTS = FetchOptions()
ATTEMPTS_WHILE_CHANGING = 3


def fetch(uri: str, cache: Path, progress: ProgressCallback | None = None, *, options: FetchOptions = DEFAULTS) -> Path:
    """A complete local copy in the cache; a local path is returned as it is. Blocks: call it in a thread."""
    location = located(uri, options)
    if location.scheme == "file":
        path = existing_path(location)
        check_file(path, location.sha256, options.size, location.shown)
        return path
    pin = pinned_revision(location)
    found = cached(cache, cache_key(location, pin)) if pin else None
    try:
        return found or until_stable(lambda: _fetch_listed(location, pin, cache, progress, options), location)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = f"set {ENV_CACHE_DIR} to a directory that can be written"
        raise LoadFailed(f"{location.shown}: cannot be kept in {cache} ({reason}); {advice}") from error


def _fetch_listed(
    location: Location, pin: str, cache: Path, progress: ProgressCallback | None, options: FetchOptions
) -> Path:
    store, contents = listed(location, options)
    revision = pin or revision_of(contents, time_ns())
    key = cache_key(location, revision)

    def build(partial: Path) -> str:
        return assemble(store, contents, location, partial, options, progress)

    source = {"uri": location.shown, "revision": revision}
    return cached(cache, key) or build_once(cache, key, source, build, _while_waiting(contents, progress))


def listing(uri: str, *, options: FetchOptions = DEFAULTS) -> list[Entry]:
    """Every file that the URI names, in one or a few requests."""
    _, contents = listed(located(uri, options), options)
    return list(contents.entries)


def located(uri: str, options: FetchOptions) -> Location:
    location = parse(uri)
    if not options.sha256:
        return location
    sha256 = checked_sha256(options.sha256, location.shown)
    if location.sha256 and location.sha256 != sha256:
        raise LoadFailed(f"{location.shown}: sha256 is given twice and differs; leave one of them out")
    return location._replace(sha256=sha256)


def listed(location: Location, options: FetchOptions) -> tuple[Store, Contents]:
    """Opens the store and lists the URI; the hash that was asked for becomes the one that is checked."""
    store = open_store(location, options)
    contents = retried(store.contents, location.shown, options)
    check_size(contents, options.size, location.shown)
    if not location.sha256:
        return store, contents
    if not contents.single:
        raise LoadFailed(f"{location.shown}: sha256 is for one file and this is a directory; pin a file or an archive")
    return store, Contents((replace(contents.entries[0], digest=f"sha256:{location.sha256}"),), single=True)


def assemble(
    store: Store,
    contents: Contents,
    location: Location,
    partial: Path,
    options: FetchOptions,
    progress: ProgressCallback | None,
) -> str:
    """Fills `partial` with the content alone and returns its name; interrupted, it goes on where it was."""
    files, parts = partial / ".files", partial / ".parts"
    download(store, contents.entries, files, parts, location.shown, options, progress)
    shutil.rmtree(parts)
    first = contents.entries[0].path
    if contents.entries[0].size < 0:
        check_file(files / first, "", options.size, location.shown)
    if not contents.single:
        return _moved(files, partial / _directory_name(location.filename)).name
    if not (options.unpack and is_archive(first)):
        name = _moved(files / first, partial / first).name
        files.rmdir()
        return name
    from pilotlight_predictor.storage.archives import unpack

    target = partial / _directory_name(without_archive_ending(first))
    shutil.rmtree(target, ignore_errors=True)
    unpack(files / first, target, location.shown, options)
    shutil.rmtree(files)
    return target.name


def _moved(source: Path, target: Path) -> Path:
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(source, target)
    return target


def _directory_name(name: str) -> str:
    return name if safe_relative(name) and not name.startswith(".") else "model"


def until_stable(call: Callable[[], T], location: Location) -> T:
    """Starts over when an object was replaced under the download: parts of two versions never mix."""
    for _ in range(ATTEMPTS_WHILE_CHANGING):
        try:
            return call()
        except Changed:
            continue
    raise LoadFailed(f"{location.shown}: keeps changing while it is downloaded; write it once, under a name of its own")


def _while_waiting(contents: Contents, progress: ProgressCallback | None) -> Callable[[], None]:
    """Another process is downloading the same: the caller hears of it each second, so that it can give up."""
    told = 0.0
    state = Progress(0, total_size(contents.entries), 0, len(contents.entries))

    def waiting() -> None:
        nonlocal told
        if progress is not None and monotonic() - told >= 1:
            told = monotonic()
            progress(state)

    return waiting
