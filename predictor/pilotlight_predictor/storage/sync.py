"""`sync_repository`: mirror a repository of a store into a directory, which a server polls like a local one.

A model is replaced as a whole: its next state is staged from downloads and hard links to unchanged files, and swapped
in atomically. A reader sees the old model or the new one, never a mixture. Names with `.pilotlight-` are internal.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.cache import PARTIAL, read_json
from pilotlight_predictor.storage.fetcher import DEFAULTS, fill_directory, open_and_list
from pilotlight_predictor.storage.store_interface import Entry, FetchOptions, ProgressCallback, Store
from pilotlight_predictor.storage.transfer import download
from pilotlight_predictor.storage.uri import Location

STATE = ".pilotlight-sync.json"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of renameat2(2)

SyncState = Mapping[str, str]  # path → identity of its content


class SyncPlan(NamedTuple):
    """Top-level names (models or plain files) to update and to remove."""

    changed: list[str]
    removed: list[str]


def plan_sync(before: SyncState, after: SyncState) -> SyncPlan:
    differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    staying = {_top_level(path) for path in after}
    touched = {_top_level(path) for path in differing}
    return SyncPlan(sorted(touched & staying), sorted(touched - staying))


def sync_repository(
    uri: str, directory: Path, progress: ProgressCallback | None = None, *, options: FetchOptions = DEFAULTS
) -> bool:
    """Make `directory` equal to the URI; return whether anything changed. An unreadable store changes nothing."""
    return fill_directory(uri, directory, options, lambda at: _RepositorySync(at, directory, options, progress).run())


class _RepositorySync:
    def __init__(
        self, location: Location, directory: Path, options: FetchOptions, progress: ProgressCallback | None
    ) -> None:
        self._location = location
        self._directory = directory
        self._options = options
        self._progress = progress
        state = read_json(directory / STATE)
        known = state.get("uri") == location.redacted  # else each model is fetched and replaced
        self._state = {path: etag if known else "" for path, etag in state.get("entries", {}).items()}

    def run(self) -> bool:
        store, contents = open_and_list(self._location, self._options)
        if contents.single:
            raise LoadFailed(
                f"{self._location.redacted}: is one file, a repository is a directory of models; drop the name"
            )
        if any(entry.members is not None for entry in contents.entries):
            raise LoadFailed(f"{self._location.redacted}: has layers of archives, which cannot be polled")
        entries = [entry for entry in contents.entries if not entry.path.startswith(".")]
        after = {entry.path: _identity(entry) for entry in entries}
        todo = plan_sync(self._state, after)
        for name in todo.changed:
            self._replace(store, name, [entry for entry in entries if _top_level(entry.path) == name])
        for name in todo.removed:
            trash = self._directory / PARTIAL / "removed"
            trash.mkdir(parents=True, exist_ok=True)
            if (self._directory / name).exists():
                os.rename(self._directory / name, trash / name)
            shutil.rmtree(trash)
            self._save_state(name, {})
        if todo.changed or todo.removed:
            shutil.rmtree(self._directory / PARTIAL, ignore_errors=True)
        return bool(todo.changed or todo.removed)

    def _replace(self, store: Store, name: str, entries: Sequence[Entry]) -> None:
        after = {entry.path: _identity(entry) for entry in entries}
        digest = hashlib.sha256(json.dumps(after, sort_keys=True).encode()).hexdigest()
        stage = self._directory / PARTIAL / digest[:20]
        files = stage / "files"
        for entry in entries:
            current, staged = self._directory / entry.path, files / entry.path
            if self._state.get(entry.path) == after[entry.path] and current.is_file() and not staged.exists():
                staged.parent.mkdir(parents=True, exist_ok=True)
                os.link(current, staged)
        download(store, entries, files, stage / "parts", self._location.redacted, self._options, self._progress)
        self._copy_times(files, name, after)
        _replace_path(files / name, self._directory / name)
        shutil.rmtree(stage)
        self._save_state(name, after)

    def _copy_times(self, files: Path, name: str, after: SyncState) -> None:
        """Preserve the times of unchanged directories: pollers reload a version whose time differs."""
        for staged in (path for path in (files / name).rglob("*") if path.is_dir()):
            prefix = staged.relative_to(files).as_posix() + "/"
            current = self._directory / prefix
            if current.is_dir() and _below(prefix, self._state) == _below(prefix, after):
                shutil.copystat(current, staged)

    def _save_state(self, name: str, after: SyncState) -> None:
        self._state = {path: etag for path, etag in self._state.items() if _top_level(path) != name} | dict(after)
        fresh = self._directory / f"{STATE}.next"
        fresh.write_text(json.dumps({"uri": self._location.redacted, "entries": self._state}))
        fresh.replace(self._directory / STATE)


def _top_level(path: str) -> str:
    return path.partition("/")[0]


def _identity(entry: Entry) -> str:
    return f"{entry.size}:{entry.etag}:{entry.digest}"


def _below(prefix: str, state: SyncState) -> dict[str, str]:
    return {path: etag for path, etag in state.items() if path.startswith(prefix)}


def _replace_path(fresh: Path, target: Path) -> None:
    """Move `fresh` to `target` and remove the old content. Both must be on one file system."""
    if not target.exists() or (fresh.is_file() and target.is_file()):
        os.replace(fresh, target)
        return
    if not _swap(fresh, target):
        # No exchange on this file system (some network ones): the path is missing for an instant.
        old = fresh.with_name(fresh.name + ".old")
        os.rename(target, old)
        os.rename(fresh, target)
        fresh = old
    if fresh.is_dir():
        shutil.rmtree(fresh)
    else:
        fresh.unlink()


def _swap(first: Path, second: Path) -> bool:
    """Swap two names atomically with renameat2; False if the system or file system lacks it."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0)
