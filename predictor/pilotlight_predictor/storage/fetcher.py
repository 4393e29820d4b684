"""`fetch` a URI into the shared cache, or `fetch_into` a plain directory, for containers that mount it without a cache.

locate (URI + options) ─> open_and_list (store, contents) ─> assemble (download, unpack) ─> cache | directory | sync
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, TypeVar

from pilotlight.contract import ENV_CACHE_DIR
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.archives import check_file, check_size, unpack, unpack_layers
from pilotlight_predictor.storage.cache import (
    PARTIAL,
    cache_key,
    cached,
    file_lock,
    get_or_build,
    read_json,
    revision_of,
)
from pilotlight_predictor.storage.pins import at_pin, check_etags, fixed_revision
from pilotlight_predictor.storage.store_interface import (
    ContentChanged,
    Contents,
    Entry,
    FetchOptions,
    Progress,
    ProgressCallback,
    Store,
    VersionedStore,
    total_size,
)
from pilotlight_predictor.storage.stores import open_store
from pilotlight_predictor.storage.stores.local import existing_path
from pilotlight_predictor.storage.transfer import download, with_retries
from pilotlight_predictor.storage.uri import (
    Location,
    is_archive,
    parse,
    safe_relative,
    validate_sha256,
    without_archive_ending,
)

T = TypeVar("T")
DEFAULTS = FetchOptions()
ATTEMPTS_WHILE_CHANGING = 3
# Content of a directory: a restarted container downloads nothing, and a changed model leaves no stale file behind.
SOURCE = ".pilotlight-source.json"


def fetch(uri: str, cache: Path, progress: ProgressCallback | None = None, *, options: FetchOptions = DEFAULTS) -> Path:
    """Return a complete copy in the cache; a local path is returned as it is. Blocks: call it in a thread.

    Raise ModelChanged if the pinned content of the options is neither in the cache nor in the store.
    """
    location = locate(uri, options)
    if location.scheme == "file":
        path = existing_path(location)
        check_file(path, location.sha256, options.size, location.redacted)
        return path
    fixed = fixed_revision(location, options.pin)
    if fixed and (content := cached(cache, cache_key(location, fixed))):
        return content
    try:
        return retry_while_changing(lambda: _fetch_into_cache(location, fixed, cache, progress, options), location)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = f"set {ENV_CACHE_DIR} to a directory that can be written"
        raise LoadFailed(f"{location.redacted}: cannot be cached in {cache} ({reason}); {advice}") from error


def _fetch_into_cache(
    location: Location, fixed: str, cache: Path, progress: ProgressCallback | None, options: FetchOptions
) -> Path:
    store, contents = open_and_list(location, options)
    revision = fixed or revision_of(contents, time_ns())
    key = cache_key(location, revision)

    def build(partial: Path) -> str:
        return assemble(store, contents, location, partial, options, progress)

    source = {"uri": location.redacted, "revision": revision}
    return cached(cache, key) or get_or_build(cache, key, source, build, _while_waiting(contents, progress))


def listing(uri: str, *, options: FetchOptions = DEFAULTS) -> list[Entry]:
    """Return every file of the URI, with one or a few requests."""
    _, contents = open_and_list(locate(uri, options), options)
    return list(contents.entries)


def locate(uri: str, options: FetchOptions) -> Location:
    """Parse the URI, with the pinned hash or commit of the options. Raise LoadFailed if two hashes differ."""
    location = parse(uri)
    if options.pin is not None:
        location = at_pin(location, options.pin)
    if not options.sha256:
        return location
    sha256 = validate_sha256(options.sha256, location.redacted)
    if location.sha256 and location.sha256 != sha256:
        raise LoadFailed(f"{location.redacted}: sha256 is set twice with different values; remove one")
    return location._replace(sha256=sha256)


def open_and_list(location: Location, options: FetchOptions) -> tuple[Store, Contents]:
    """Open the store and list the URI, or its pinned content; a pinned hash becomes the digest of the entry."""
    store, pin = open_store(location, options), options.pin
    list_files = store.contents
    if pin is not None and pin.files and isinstance(store, VersionedStore):
        list_files = partial(store.at_versions, pin.files)
    contents = with_retries(list_files, location.redacted, options)
    if pin is not None and pin.kind == "etags":
        check_etags(location, contents, pin)
    check_size(contents, options.size, location.redacted)
    if not location.sha256:
        return store, contents
    if not contents.single:
        raise LoadFailed(f"{location.redacted}: sha256 needs one file, this is a directory; use a file or an archive")
    return store, Contents((replace(contents.entries[0], digest=f"sha256:{location.sha256}"),), single=True)


def assemble(
    store: Store,
    contents: Contents,
    location: Location,
    partial: Path,
    options: FetchOptions,
    progress: ProgressCallback | None,
) -> str:
    """Download (and unpack) into `partial` and return the name of the content; an interrupted run is resumed."""
    files, parts = partial / ".files", partial / ".parts"
    download(store, contents.entries, files, parts, location.redacted, options, progress)
    shutil.rmtree(parts)
    first = contents.entries[0].path
    if contents.entries[0].size < 0:
        check_file(files / first, "", options.size, location.redacted)
    if any(entry.members is not None for entry in contents.entries):
        target = partial / _directory_name(location.filename)
        shutil.rmtree(target, ignore_errors=True)
        unpack_layers(contents.entries, files, target, location.redacted, options)
        shutil.rmtree(files)
        return target.name
    if not contents.single:
        return _moved(files, partial / _directory_name(location.filename)).name
    if not (options.unpack and is_archive(first)):
        name = _moved(files / first, partial / first).name
        files.rmdir()
        return name
    target = partial / _directory_name(without_archive_ending(first))
    shutil.rmtree(target, ignore_errors=True)
    unpack(files / first, target, location.redacted, options)
    shutil.rmtree(files)
    return target.name


def _moved(source: Path, target: Path) -> Path:
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(source, target)
    return target


def _directory_name(name: str) -> str:
    return name if safe_relative(name) and not name.startswith(".") else "model"


def retry_while_changing(call: Callable[[], T], location: Location) -> T:
    """Call again if an object was replaced during the download, so that parts of two versions never mix."""
    for _ in range(ATTEMPTS_WHILE_CHANGING):
        try:
            return call()
        except ContentChanged:
            continue
    raise LoadFailed(
        f"{location.redacted}: keeps changing while it is downloaded; upload each version under its own name"
    )


def _while_waiting(contents: Contents, progress: ProgressCallback | None) -> Callable[[], None]:
    """Return a callback that reports progress once a second while another process downloads: it may cancel."""
    reported_at = 0.0
    state = Progress(0, total_size(contents.entries), 0, len(contents.entries))

    def waiting() -> None:
        nonlocal reported_at
        if progress is not None and monotonic() - reported_at >= 1:
            reported_at = monotonic()
            progress(state)

    return waiting


def fetched_sizes(directory: Path) -> list[int]:
    """Return the sizes of the files of `fetch_into` that still exist; other files are ignored."""
    files = [directory / file for file in read_json(directory / SOURCE).get("files", [])]
    return [file.stat().st_size for file in files if file.is_file()]


def fetch_into(
    uri: str, directory: Path, progress: ProgressCallback | None = None, *, options: FetchOptions = DEFAULTS
) -> Path:
    """Fill the directory from a prefix or an archive and return it; for a single file return its path."""
    return fill_directory(uri, directory, options, partial(_fetch_into, directory, progress, options))


def link_into(content: Path, cache: Path, directory: Path) -> Path:
    """Link from the directory to content of a cache that others share; return as `fetch_into` does."""
    content, single = content.resolve(), content.is_file()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for old in filter(Path.is_symlink, list(directory.iterdir())):
            if old.readlink().is_relative_to(cache.resolve()):
                old.unlink()
        for source in [content] if single else content.iterdir():
            (directory / source.name).symlink_to(source)
    except OSError as error:
        raise LoadFailed(f"{content}: cannot be linked from {directory} ({error})") from error
    return directory / content.name if single else directory


def fill_directory(uri: str, directory: Path, options: FetchOptions, fill: Callable[[Location], T]) -> T:
    """Call `fill` with the lock of the directory, again if an object was replaced during the download."""
    location = locate(uri, options)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with file_lock(directory):
            return retry_while_changing(lambda: fill(location), location)
    except OSError as error:
        raise LoadFailed(f"{location.redacted}: cannot be put into {directory} ({error})") from error


def _fetch_into(directory: Path, progress: ProgressCallback | None, options: FetchOptions, location: Location) -> Path:
    fixed = fixed_revision(location, options.pin)
    before = read_json(directory / SOURCE)
    if fixed and _is_current(directory, before, cache_key(location, fixed)):
        return directory / str(before["content"])
    store, contents = open_and_list(location, options)
    revision = cache_key(location, fixed or revision_of(contents, time_ns()))
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
    """Move files in, remove stale ones, and write the source file last: without it a directory counts as unfilled."""
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


def _is_current(directory: Path, source: dict[str, Any], revision: str) -> bool:
    return source.get("revision") == revision and all((directory / file).is_file() for file in source["files"])
