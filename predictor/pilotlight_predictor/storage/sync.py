"""`sync_repository`: keeps a directory like a repository in a store, so that a server can poll it as if it were local.

A model is replaced as a whole: its next state is put together beside it, out of downloads and hard links to the files
that stay, and takes its place in one exchange. A reader sees the old model or the next one, never a mixture. What is
ours begins with `.pilotlight-` and is no model.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.exchange import exchange
from pilotlight_predictor.storage.fetching import DEFAULTS, listed, located, until_stable
from pilotlight_predictor.storage.interface import Entry, FetchOptions, ProgressCallback, Store
from pilotlight_predictor.storage.lock import locked
from pilotlight_predictor.storage.transfer import download
from pilotlight_predictor.storage.uri import Location

PARTIAL, STATE = ".pilotlight-partial", ".pilotlight-sync.json"
State = Mapping[str, str]  # path → what identifies its content


class Plan(NamedTuple):
    """Top-level names, models or plain files, to bring up to date and to remove."""

    changed: list[str]
    removed: list[str]


def plan(before: State, after: State) -> Plan:
    differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    staying = {_unit(path) for path in after}
    touched = {_unit(path) for path in differing}
    return Plan(sorted(touched & staying), sorted(touched - staying))


def sync_repository(
    uri: str, directory: Path, progress: ProgressCallback | None = None, *, options: FetchOptions = DEFAULTS
) -> bool:
    """Makes `directory` like the URI; whether anything changed. A store that cannot be read changes nothing."""
    location = located(uri, options)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            return until_stable(lambda: _Sync(location, directory, options, progress).run(), location)
    except OSError as error:
        raise LoadFailed(f"{location.shown}: cannot be put into {directory} ({error})") from error


class _Sync:
    def __init__(
        self, location: Location, directory: Path, options: FetchOptions, progress: ProgressCallback | None
    ) -> None:
        self._location = location
        self._directory = directory
        self._options = options
        self._progress = progress
        self._state = dict(_read_state(directory, location.shown))

    def run(self) -> bool:
        store, contents = listed(self._location, self._options)
        if contents.single:
            raise LoadFailed(
                f"{self._location.shown}: is one file, a repository is a directory of models; drop the name"
            )
        entries = [entry for entry in contents.entries if not entry.path.startswith(".")]
        after = {entry.path: _identity(entry) for entry in entries}
        todo = plan(self._state, after)
        for name in todo.changed:
            self._replace(store, name, [entry for entry in entries if _unit(entry.path) == name])
        for name in todo.removed:
            self._remove(name)
        if todo.changed or todo.removed:
            shutil.rmtree(self._directory / PARTIAL, ignore_errors=True)
        return bool(todo.changed or todo.removed)

    def _replace(self, store: Store, name: str, entries: Sequence[Entry]) -> None:
        after = {entry.path: _identity(entry) for entry in entries}
        stage = self._directory / PARTIAL / _stage_name(after)
        files = stage / "files"
        for entry in entries:
            if self._state.get(entry.path) == after[entry.path]:
                _link(self._directory / entry.path, files / entry.path)
        download(store, entries, files, stage / "parts", self._location.shown, self._options, self._progress)
        self._keep_times(files, name, after)
        exchange(files / name, self._directory / name)
        shutil.rmtree(stage)
        self._note(name, after)

    def _keep_times(self, files: Path, name: str, after: State) -> None:
        """A directory with nothing new keeps its time: pollers reload a version when its time differs."""
        for staged in (path for path in (files / name).rglob("*") if path.is_dir()):
            prefix = staged.relative_to(files).as_posix() + "/"
            current = self._directory / prefix
            if current.is_dir() and _below(prefix, self._state) == _below(prefix, after):
                shutil.copystat(current, staged)

    def _remove(self, name: str) -> None:
        trash = self._directory / PARTIAL / "removed"
        trash.mkdir(parents=True, exist_ok=True)
        if (self._directory / name).exists():
            os.rename(self._directory / name, trash / name)
        shutil.rmtree(trash)
        self._note(name, {})

    def _note(self, name: str, after: State) -> None:
        self._state = {path: etag for path, etag in self._state.items() if _unit(path) != name} | dict(after)
        text = json.dumps({"uri": self._location.shown, "entries": self._state})
        fresh = self._directory / f"{STATE}.next"
        fresh.write_text(text)
        fresh.replace(self._directory / STATE)


def _read_state(directory: Path, shown: str) -> State:
    """Nothing when the directory was filled from elsewhere: then each model is fetched and replaced."""
    try:
        state = json.loads((directory / STATE).read_text())
    except (OSError, ValueError):
        return {}
    entries: dict[str, str] = state["entries"]
    return {path: etag if state["uri"] == shown else "" for path, etag in entries.items()}


def _unit(path: str) -> str:
    return path.partition("/")[0]


def _identity(entry: Entry) -> str:
    return f"{entry.size}:{entry.etag}:{entry.digest}"


def _below(prefix: str, state: State) -> dict[str, str]:
    return {path: etag for path, etag in state.items() if path.startswith(prefix)}


def _stage_name(after: State) -> str:
    return hashlib.sha256(json.dumps(after, sort_keys=True).encode()).hexdigest()[:20]


def _link(source: Path, target: Path) -> None:
    if source.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)
