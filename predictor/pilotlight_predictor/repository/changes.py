"""What changed in a repository between two polls. Fingerprints are read from disk; the decisions are pure.

A change is acted upon only when two polls in a row saw the same files, so a model that is still being copied is not
loaded half-written:

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
    """One file as `stat` sees it through links; the inode tells a file that was swapped by a rename."""

    path: str
    mtime_ns: int
    size: int
    inode: int


class Fingerprint(Struct, frozen=True):
    """`model` is what all versions share (configuration, labels, warm-up data); `versions` each version's files."""

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
    """Whether two polls in a row saw the same; None is a model that was not there."""
    return previous == current


def settled_changes(
    acted: Mapping[str, Fingerprint], previous: Mapping[str, Fingerprint], current: Mapping[str, Fingerprint]
) -> Changes:
    """What differs from the state last acted upon and has come to rest since the previous poll."""

    def rest(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if settled(previous.get(name), current.get(name)))

    changes = diff(acted, current)
    return Changes(rest(changes.added), rest(changes.removed), rest(changes.changed))


def changed_versions(old: Fingerprint, new: Fingerprint) -> frozenset[int]:
    """The versions that came, went or differ; every one of them when a file that they share changed."""
    before, after = dict(old.versions), dict(new.versions)
    if old.model != new.model:
        return frozenset(before) | frozenset(after)
    return frozenset(v for v in before.keys() | after.keys() if before.get(v) != after.get(v))


def _stamps(path: Path, name: str, parents: frozenset[tuple[int, int]]) -> Iterator[Stamp]:
    """A file, or all files below a directory. What vanishes meanwhile is left out: the next poll sees it."""
    try:
        status = path.stat()
    except OSError:
        return
    identity = (status.st_dev, status.st_ino)
    if not path.is_dir():
        yield Stamp(name, status.st_mtime_ns, status.st_size, status.st_ino)
    elif identity not in parents:  # a link to a directory above would never end
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
