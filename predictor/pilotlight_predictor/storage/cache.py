"""Cache shared by processes: one directory per URI and revision, complete or absent.

    <cache>/models/<key>/.source.json   the URI without secrets, and the name of the content
    <cache>/models/<key>/<name>        the model: a file or a directory
    <cache>/partial/<key>/             a download in progress, resumed after an interruption
    <cache>/locks/<key>.lock           held by the downloading process

The key is a hash of the URI and a hash of its revision: the pinned hash, commit or versions, else all etags and sizes.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

from pilotlight_predictor.storage.store_interface import Contents
from pilotlight_predictor.storage.uri import OCI, Location, safe_relative

PARTIAL = ".pilotlight-partial"  # directory of an unfinished download outside the cache
POLL_SECONDS = 0.05
UNVERSIONED = "unversioned-"
_COMMITS = {"hf": r"[@:]([0-9a-f]{40})(/|$)", OCI: r"@sha256:([0-9a-f]{64})$"}

Build = Callable[[Path], str]


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold `flock` on a file or directory, which the kernel releases when the holder dies.

    `on_wait` is called while another process holds it, and may raise to cancel.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_wait()
            sleep(POLL_SECONDS)
        yield
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing or unreadable."""
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def pinned_revision(location: Location) -> str:
    """Return the hash or commit that makes a URI immutable, so that a cached copy needs no listing; else empty."""
    if location.sha256:
        return f"sha256:{location.sha256}"
    commit = re.search(_COMMITS[location.scheme], location.rest) if location.scheme in _COMMITS else None
    return commit[1] if commit else ""


def revision_of(contents: Contents, now_ns: int) -> str:
    """Return a hash of paths, sizes and etags; another one on each call without etags, which alone show changes."""
    if any(not entry.etag and not entry.digest for entry in contents.entries):
        return f"{UNVERSIONED}{now_ns}"
    lines = (f"{entry.path}\0{entry.size}\0{entry.etag}\0{entry.digest}" for entry in contents.entries)
    return short_hash("\n".join(lines))


def cache_key(location: Location, revision: str) -> str:
    # With a pinned hash without the query: a signed URL has another one each time.
    text = location.text.partition("?")[0] if location.sha256 else location.text
    return f"{short_hash(text)}-{short_hash(revision)}"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def cached(cache: Path, key: str) -> Path | None:
    home = cache / "models" / key
    name = read_json(home / ".source.json").get("content")
    # Who shares a cache may write to it: what it names is in its own folder.
    return home / name if isinstance(name, str) and safe_relative(name) else None


def get_or_build(cache: Path, key: str, source: dict[str, str], build: Build, on_wait: Callable[[], None]) -> Path:
    """Return the cached content. The first process builds it in `partial/` and publishes it with one rename.

    `build` fills the given directory, which may hold files of an interrupted run, and returns the name of the content.
    """
    with file_lock(cache / "locks" / f"{key}.lock", on_wait):
        content = cached(cache, key)
        if content is not None:
            return content
        partial = cache / "partial" / key
        partial.mkdir(parents=True, exist_ok=True)
        name = build(partial)
        (partial / ".source.json").write_text(json.dumps({**source, "content": name}))
        home = cache / "models" / key
        home.parent.mkdir(parents=True, exist_ok=True)
        if home.exists():
            shutil.rmtree(home)
        os.rename(partial, home)
    _discard_superseded(cache, key)
    return home / name


def _discard_superseded(cache: Path, key: str) -> None:
    """Remove unfinished downloads of other revisions of the URI, and unversioned copies, which no fetch can reuse."""

    def raise_locked() -> None:
        raise BlockingIOError

    same_uri = f"{key.partition('-')[0]}-*"
    for home in (cache / "models").glob(same_uri):
        if home.name != key and read_json(home / ".source.json").get("revision", "").startswith(UNVERSIONED):
            shutil.rmtree(home, ignore_errors=True)
    for other in (cache / "partial").glob(same_uri):
        with suppress(BlockingIOError), file_lock(cache / "locks" / f"{other.name}.lock", raise_locked):
            shutil.rmtree(other, ignore_errors=True)
