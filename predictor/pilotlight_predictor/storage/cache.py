"""The cache that processes share: one directory per URI and version of what it names, complete or not there at all.

    <cache>/models/<key>/.source.json   what it is (the URI without secrets) and the name of its content
    <cache>/models/<key>/<name>        the model: a file or a directory
    <cache>/partial/<key>/             a download on its way, taken up again after an interruption
    <cache>/locks/<key>.lock           held by the one process that downloads

The key is a hash of the URI and a hash of its revision: the pinned hash or commit, else all etags and sizes.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pilotlight_predictor.storage.interface import Contents
from pilotlight_predictor.storage.lock import locked
from pilotlight_predictor.storage.uri import Location

UNVERSIONED = "unversioned-"
Build = Callable[[Path], str]
_COMMIT = re.compile(r"[@:]([0-9a-f]{40})(/|$)")


def pinned_revision(location: Location) -> str:
    """What makes a URI immutable, so that a cached copy needs no question to the store; empty when nothing does."""
    if location.sha256:
        return f"sha256:{location.sha256}"
    commit = _COMMIT.search(location.rest) if location.scheme == "hf" else None
    return commit[1] if commit else ""


def revision_of(contents: Contents, now_ns: int) -> str:
    """All paths, sizes and etags. A server that gives no etag cannot say that nothing changed: each time is another."""
    if any(not entry.etag and not entry.digest for entry in contents.entries):
        return f"{UNVERSIONED}{now_ns}"
    lines = (f"{entry.path}\0{entry.size}\0{entry.etag}\0{entry.digest}" for entry in contents.entries)
    return _short_hash("\n".join(lines))


def cache_key(location: Location, revision: str) -> str:
    """A signed URL has another query each time; with a pinned hash the query says nothing about the content."""
    text = location.text.partition("?")[0] if location.sha256 else location.text
    return f"{_short_hash(text)}-{_short_hash(revision)}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def cached(cache: Path, key: str) -> Path | None:
    home = cache / "models" / key
    source = _source(home)
    return home / source["content"] if source else None


def _source(home: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((home / ".source.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def build_once(cache: Path, key: str, source: dict[str, str], build: Build, waiting: Callable[[], None]) -> Path:
    """Returns the cached content; the first process to come builds it in `partial/` and moves it in with one rename.

    `build` fills the directory it is given, may find the leavings of an earlier run there, and returns the name of
    the content.
    """
    with locked(cache / "locks" / f"{key}.lock", waiting):
        found = cached(cache, key)
        if found is not None:
            return found
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
    """Unfinished downloads of other versions of the same URI, and copies that no later fetch can ever find."""
    same_uri = f"{key.partition('-')[0]}-*"
    for home in (cache / "models").glob(same_uri):
        if home.name != key and _source(home).get("revision", "").startswith(UNVERSIONED):
            shutil.rmtree(home, ignore_errors=True)
    for other in (cache / "partial").glob(same_uri):
        with suppress(BlockingIOError), locked(cache / "locks" / f"{other.name}.lock", _give_up):
            shutil.rmtree(other, ignore_errors=True)


def _give_up() -> None:
    raise BlockingIOError
