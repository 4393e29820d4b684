"""Digests and snapshots of local models: each revision serves the bytes it was deployed with.

    <home>/models/<sha256>/content/<name>    the snapshot: a file or a folder; missing with --no-snapshot
    <home>/models/<sha256>/files.json        inode, size, mtime and digest of each of its files
    <home>/models/<sha256>/<path>.json       the same of an original without a snapshot; a hash of its path
    <home>/models/digests.json               digests by inode, size and mtime, so that unchanged files are read once

Snapshots are reflinks or copies, never hard links, which a rewrite in place would change. `platformctl` takes them when
it deploys; the control process checks them before each start and collects those that no stored revision needs.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from stat import S_ISDIR
from typing import BinaryIO, Final, NamedTuple, TypeVar

import msgspec

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.model_pins import ModelPin
from pilotlight.wire.environments.requirements import FILES as REQUIREMENTS
from pilotlight.wire.environments.requirements import WITH_CODE
from pilotlight.wire.model_formats.python_code import literal_paths
from pilotlight.wire.shared_files import replace_file

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, bytes in all
MAX_FILES: Final = 100_000
FILES_LIMIT: Final = 64  # files that a pin lists by name, so that `diff` can tell which of them changed
HASHED_BYTES: Final = 64 << 20  # a file of at most this size is read again before a start if its time differs
COMPANIONS: Final = frozenset({"example.json", "config.pbtxt"})
SNAPSHOT_RECORD: Final = "files.json"
EXCLUDED: Final = frozenset({"__pycache__", ".git"})
GRACE_S: Final = 3600.0  # a snapshot is taken before the release that needs it is stored
SPARE_BYTES: Final = 256 << 20  # left free on the disk, but not more than SPARE_SHARE of it
SPARE_SHARE: Final = 20
_RACY_NS: Final = 2_000_000_000  # a file written so recently may change again without another mtime
_CHUNK: Final = 1 << 20
_FICLONE: Final = 0x40049409  # ioctl of Linux: share the blocks of another file, copied on write
_ATTEMPTS: Final = 3


class ModelChanged(PlatformError):
    """The content of a local model is not the one that the revision was deployed with."""


class Stat(NamedTuple):
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int  # of the cache of digests only: no program can set it back


_EMPTY_FOLDER: Final = Stat(0, 0, 0, 0)


class FileRecord(NamedTuple):
    """A file of a model; stored as a list in JSON."""

    stat: Stat
    digest: str


Records = dict[str, FileRecord]  # by path within the model; of an empty folder (`1/` of an ensemble) it ends in /


@dataclass(frozen=True, slots=True)
class Usage:
    count: int
    bytes: int


class ModelSnapshots:
    """The `models` folder of a home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pin(self, path: str, *, snapshot: bool, progress: Progress = lambda done, total: None) -> ModelPin:
        """Return the pin of a file or folder, and keep its record, with `snapshot` also a copy of its bytes."""
        source = Path(path)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        records = self._records(source, progress)
        pin = _pin(source, records)
        entry = self._entry(pin)
        if self._is_intact(pin, path):
            os.utime(entry)
        elif snapshot:
            return self._take(source, pin.size, progress)
        else:
            entry.mkdir(mode=0o700, exist_ok=True)
            shutil.rmtree(entry / "content", ignore_errors=True)  # a damaged snapshot
            replace_file(entry / _record_of(path), msgspec.json.encode(records), durable=True)
        return pin

    def digest(self, path: str, progress: Progress = lambda done, total: None) -> ModelPin:
        """Return the pin without keeping anything, to compare with."""
        return _pin(Path(path), self._records(Path(path), progress))

    def serving_path(self, pin: ModelPin, path: str) -> str:
        """Return the path to serve the pinned content from. Raise ModelChanged if it is not there any more."""
        changed = self.changed_files(pin, path)
        content = self._entry(pin) / "content"
        if changed == []:
            return self.content(pin, path)
        if changed is None:
            problem = f"the copy of {path} that this revision serves no longer exists ({pin.digest[:19]})"
        else:
            where = "its snapshot" if content.exists() else path
            problem = f"{where} has changed since this revision was deployed: {', '.join(changed[:3])}"
        raise ModelChanged(f"ModelChanged: {problem}", "deploy it again: platformctl deploy -f FILE")

    def content(self, pin: ModelPin, path: str) -> str:
        """Return the path of the snapshot; of a model without one its own."""
        content = self._entry(pin) / "content"
        return str(content / Path(path).name) if content.exists() else path

    def changed_files(self, pin: ModelPin, path: str) -> list[str] | None:
        """Compare with the record; None: there is none."""
        entry = self._entry(pin)
        snapshot = (entry / "content").exists()
        root = entry / "content" / Path(path).name if snapshot else Path(path)
        recorded = _read_json(entry / (SNAPSHOT_RECORD if snapshot else _record_of(path)), Records)
        if not recorded:
            return None
        changed = []
        for name, record in recorded.items():
            try:
                now = _stat(_base(root) / name)
            except OSError:
                changed.append(name)
                continue
            if _unchanged(now, record.stat, snapshot):
                continue
            # Equal bytes in another file, such as after a checkout, are no change.
            hashable = now.size == record.stat.size <= HASHED_BYTES
            if not (hashable and _sha256(_base(root) / name, lambda _: None) == record.digest):
                changed.append(name)
        if not snapshot:
            # A record of an earlier release lists no empty folders.
            changed += sorted({name for name, _ in _files(root) if not name.endswith("/")} - recorded.keys())
        return changed

    def collect(self, needed: Collection[str], now: float) -> list[str]:
        """Remove what no digest of `needed` names and no deploy has taken within GRACE_S; return the removed names."""
        removed = []
        for entry in self._entries():
            with suppress(OSError):
                if f"sha256:{entry.name}" not in needed and now - entry.stat().st_mtime > GRACE_S:
                    shutil.rmtree(entry)
                    removed.append(entry.name)
        return removed

    def usage(self) -> Usage:
        snapshots = [entry for entry in self._entries() if (entry / "content").exists()]
        records = [_read_json(entry / SNAPSHOT_RECORD, Records) for entry in snapshots]
        sizes = [sum(record.stat.size for record in each.values()) for each in records if each]
        return Usage(len(sizes), sum(sizes))

    def _entry(self, pin: ModelPin) -> Path:
        return self._folder / pin.digest.removeprefix("sha256:")

    def _is_intact(self, pin: ModelPin, path: str) -> bool:
        """Whether there is an unchanged snapshot."""
        return (self._entry(pin) / "content").exists() and self.changed_files(pin, path) == []

    def _entries(self) -> list[Path]:
        return [each for each in self._folder.iterdir() if each.is_dir()] if self._folder.is_dir() else []

    def _records(self, source: Path, progress: Progress) -> Records:
        """Return the files with their digests, from the cache where inode, size and mtime are known."""
        files = dict(_files(source))
        if all(name.endswith("/") for name in files):
            raise UsageError(f"storageUri: {source} does not exist or is empty", "correct the path")
        cache = _read_json(self._folder / "digests.json", dict[str, Records])
        known = cache.get(str(source), {})
        total, done = sum(stat.size for stat in files.values()), 0
        records = {}
        for name, stat in files.items():
            record = known.get(name)
            if record is None or record.stat != stat:
                record = FileRecord(stat, _sha256(_base(source) / name, _from(done, total, progress)))
            records[name] = record
            done += stat.size
        settled = time.time_ns() - _RACY_NS
        cache[str(source)] = {name: each for name, each in records.items() if each.stat.mtime_ns < settled}
        if self._folder.is_dir():
            remaining = {key: value for key, value in cache.items() if os.path.exists(key)}
            with suppress(OSError):  # a cache: a full disk must not refuse what needs no copy
                replace_file(self._folder / "digests.json", msgspec.json.encode(remaining))
        return records

    def _take(self, source: Path, size: int, progress: Progress) -> ModelPin:
        free, spare = disk_space(self._folder)
        if size + spare > free:
            needs = f"a snapshot of {source} needs {size:,} bytes plus a reserve of {spare:,}"
            message = f"storageUri: {needs}; {free:,} are free in {self._folder}"
            raise PlatformError(message, "free some space, or serve it in place: platformctl deploy --no-snapshot")
        for _ in range(_ATTEMPTS):
            stage = self._folder / f"partial-{secrets.token_hex(4)}"
            try:
                pin = self._copy(source, stage, size, progress)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
            if pin is not None:
                return pin
        raise PlatformError(f"storageUri: {source} changed while it was copied", "deploy when it is complete")

    def _copy(self, source: Path, stage: Path, size: int, progress: Progress) -> ModelPin | None:
        """Copy and hash what was copied. Return None if a file changed during the copy."""
        before, done = dict(_files(source)), 0
        root = stage / "content" / ("" if source.is_file() else source.name)
        for name, stat in before.items():
            target = root / name
            folder = target if name.endswith("/") else target.parent
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder == target:
                continue
            with (_base(source) / name).open("rb") as original, target.open("wb") as copy:
                clone(original, copy, os.fstat(original.fileno()).st_size)
            shutil.copystat(_base(source) / name, target)
            done += stat.size
            progress(done, 2 * size)
        if dict(_files(source)) != before:
            return None
        records, read = {}, 0
        for name, stat in before.items():
            records[name] = FileRecord(_stat(root / name), _sha256(root / name, _from(size + read, 2 * size, progress)))
            read += stat.size
        pin = _pin(source, records)
        replace_file(stage / SNAPSHOT_RECORD, msgspec.json.encode(records), durable=True)
        entry = self._entry(pin)
        if self._is_intact(pin, str(source)):
            os.utime(entry)  # another deploy was faster
        else:
            shutil.rmtree(entry, ignore_errors=True)  # damaged, or a record of --no-snapshot
            os.rename(stage, entry)
        return pin


def _unchanged(now: Stat, recorded: Stat, snapshot: bool) -> bool:
    """Compare size and modification time; of an original also the inode, of a snapshot whole seconds.

    A home folder may have been moved by a program that keeps whole seconds only, such as tar.
    """
    if snapshot:
        return (now.size, now.mtime_ns // 10**9) == (recorded.size, recorded.mtime_ns // 10**9)
    return now[:3] == recorded[:3]


def _files(source: Path) -> Iterator[tuple[str, Stat]]:
    """Yield files and empty folders in order of their names, with links followed; of a file also what belongs to it.

    Raise UsageError for a name that no document can carry, and for more than MAX_FILES.
    """
    base = _base(source)
    paths = list(islice(_companions(source) if source.is_file() else _walk(source, frozenset()), MAX_FILES + 1))
    if len(paths) > MAX_FILES:  # links among a few folders make as many paths as they have orders
        message = f"storageUri: {base} has more than {MAX_FILES:,} files and folders, with links followed"
        raise UsageError(message, "set the folder of one model")
    for path in sorted({*paths}):
        name = path.relative_to(base).as_posix()
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UsageError(f"storageUri: {base}: the file name {name!r} is not UTF-8", "rename the file") from None
        with suppress(FileNotFoundError):  # just removed, or a link that leads nowhere
            if path.is_file():
                yield name, _stat(path)
            elif not source.is_file() and path.name not in EXCLUDED and path.is_dir() and not any(path.iterdir()):
                yield f"{name}/", _EMPTY_FOLDER


def is_companion(file: Path, name: str) -> bool:
    """Return whether a file of that name is read beside a model file, or is that file.

    Those that begin with its name (weights of an ONNX model), the configuration and example of a model, and of a
    Python model, a pickle, or weights with their model.py, the other modules and the requirements.
    """
    code = may_import(file)
    suffix = ".py" if code else ".data" if file.suffix == ".onnx" else None
    belongs = name.startswith((f"{file.stem}.", f"{file.stem}_"))
    named = (*COMPANIONS, *(REQUIREMENTS if code else ()))
    return name == file.name or belongs or name in named or Path(name).suffix == suffix


def may_import(file: Path) -> bool:
    """Return whether modules and packages beside a model file may be needed to load it."""
    return file.suffix in (".py", *WITH_CODE)


def _companions(file: Path) -> Iterator[Path]:
    """Yield what is read beside a model file, with the packages that it may import, and the file itself."""
    for path in file.parent.iterdir():
        if is_companion(file, path.name):
            yield path
        elif may_import(file) and (path / "__init__.py").is_file():
            yield from _walk(path, frozenset())
    for name in literal_paths(file) if may_import(file) else ():
        if EXCLUDED.isdisjoint(PurePosixPath(name).parts) and os.path.isfile(file.parent / name):
            yield file.parent / name


def _walk(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in above or not folder.is_dir():  # a link to a folder above
        return
    for path in folder.iterdir():
        yield path
        if path.is_dir() and path.name not in EXCLUDED:
            yield from _walk(path, above | {real})


def _base(source: Path) -> Path:
    """Return the folder that names of files are relative to."""
    return source.parent if source.is_file() else source


def _record_of(path: str) -> str:
    """Return the name of the record of an original that is served where it is."""
    return f"{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.json"


def _stat(path: Path) -> Stat:
    status = path.stat()
    if S_ISDIR(status.st_mode):
        return _EMPTY_FOLDER
    return Stat(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _pin(source: Path, records: Records) -> ModelPin:
    """Return the pin. The name of the file or folder is part of it: a server may call the model by it."""
    lines = (f"{name}\0{record.stat.size}\0{record.digest}" for name, record in sorted(records.items()))
    digest = hashlib.sha256("\n".join([source.name, *lines]).encode("utf-8", "surrogateescape")).hexdigest()
    files = {name: record.digest[:16] for name, record in records.items()} if len(records) <= FILES_LIMIT else {}
    return ModelPin(f"sha256:{digest}", sum(record.stat.size for record in records.values()), files)


def _from(base: int, total: int, progress: Progress) -> Callable[[int], None]:
    return lambda read: progress(base + read, total)


def _sha256(path: Path, progress: Callable[[int], None]) -> str:
    """Return the digest of a file; empty of a folder, so that it is never that of an empty file."""
    if path.is_dir():
        return ""
    running, read = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            running.update(chunk)
            read += len(chunk)
            progress(read)
    return running.hexdigest()


def disk_space(folder: Path) -> tuple[int, int]:
    """Return the free bytes of a disk, and how many of them copies of models must leave."""
    total, _, free = shutil.disk_usage(folder)
    return free, min(SPARE_BYTES, total // SPARE_SHARE)


def clone(original: BinaryIO, copy: BinaryIO, size: int) -> None:
    """Copy a file of `size` bytes; by reflink if possible. Bytes appended during the copy are left out."""
    try:
        fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
    except OSError:
        while chunk := original.read(min(size, _CHUNK)):
            size -= copy.write(chunk)


def _read_json(path: Path, kind: type[T]) -> T:
    """Return a mapping; empty if the file is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return kind()
