"""Changes of a repository between two polls. Fingerprints are read from disk; the decisions are pure.

A change is acted upon only if two consecutive polls saw the same files, so that a model that is still being copied is
not loaded half-written:

    poll 1  1/model.onnx 10 MB     changed, not settled
    poll 2  1/model.onnx 98 MB     changed, not settled
    poll 3  1/model.onnx 98 MB     settled: load it
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from pilotlight_predictor.repository.layout import ModelSource


class Stamp(NamedTuple):
    """Metadata of one file, links followed; the inode detects a file that was replaced by a rename."""

    path: str
    mtime_ns: int
    size: int
    inode: int


class Fingerprint(Struct, frozen=True):
    """State of a model: `model` has its shared files (configuration, labels, warm-up data), `versions` the others."""

    model: tuple[Stamp, ...]
    versions: tuple[tuple[int, tuple[Stamp, ...]], ...]


class Changes(Struct, frozen=True):
    """Names of models, sorted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def fingerprint(source: ModelSource) -> Fingerprint:
    if source.plain:
        shared = (source.config_path,) if source.config_path else ()
        model = tuple(stamp for path in shared for stamp in _stamps(path, path.name, frozenset()))
    else:
        own = {path.name for path in source.versions.values()}
        model = tuple(_directory(source.model_dir, "", frozenset(), skip=own.__contains__))
    versions = tuple(
        (version, tuple(_stamps(path, "", frozenset()))) for version, path in sorted(source.versions.items())
    )
    return Fingerprint(model, versions)


def diff(old: Mapping[str, Fingerprint], new: Mapping[str, Fingerprint]) -> Changes:
    return Changes(
        added=tuple(sorted(set(new) - set(old))),
        removed=tuple(sorted(set(old) - set(new))),
        changed=tuple(sorted(name for name in set(old) & set(new) if old[name] != new[name])),
    )


def settled(previous: Fingerprint | None, current: Fingerprint | None) -> bool:
    """Whether two consecutive polls saw the same; None is an absent model."""
    return previous == current


def settled_changes(
    applied: Mapping[str, Fingerprint], previous: Mapping[str, Fingerprint], current: Mapping[str, Fingerprint]
) -> Changes:
    """Return the differences from the applied state that did not change since the previous poll."""

    def stable(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if settled(previous.get(name), current.get(name)))

    changes = diff(applied, current)
    return Changes(stable(changes.added), stable(changes.removed), stable(changes.changed))


def changed_versions(old: Fingerprint, new: Fingerprint) -> frozenset[int]:
    """Return the versions that were added, removed or changed; all of them if a shared file changed."""
    before, after = dict(old.versions), dict(new.versions)
    if old.model != new.model:
        return frozenset(before) | frozenset(after)
    return frozenset(v for v in before.keys() | after.keys() if before.get(v) != after.get(v))


def _stamps(path: Path, name: str, parents: frozenset[tuple[int, int]]) -> Iterator[Stamp]:
    """Yield a file, or all files below a directory. Files that vanish during the scan are left to the next poll."""
    try:
        status = path.stat()
    except OSError:
        return
    identity = (status.st_dev, status.st_ino)
    if not path.is_dir():
        yield Stamp(name, status.st_mtime_ns, status.st_size, status.st_ino)
    elif identity not in parents:  # a link to a parent directory would recurse forever
        yield from _directory(path, name, parents | {identity})


def _directory(
    path: Path, name: str, parents: frozenset[tuple[int, int]], skip: Callable[[str], bool] = lambda name: False
) -> Iterator[Stamp]:
    try:
        entries = sorted(os.listdir(path))
    except OSError:
        return
    for entry in entries:
        # Hidden entries are editors', NFS's and Kubernetes' own; __pycache__ is written by loading a model.
        if not entry.startswith(".") and entry != "__pycache__" and not skip(entry):
            yield from _stamps(path / entry, f"{name}/{entry}" if name else entry, parents)
