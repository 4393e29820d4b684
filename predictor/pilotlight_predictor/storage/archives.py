"""Checks of a download (size, hash, free disk space), and unpacking of untrusted .tar, .tar.gz, .tgz and .zip files.

No link is ever created: a link in a tar to a file of the same archive becomes a hard-linked copy, any other link is
refused. So no member can be written through a link to a path outside. Layers of a registry's artifact are unpacked one
over the other, with one limit for all.
"""

import hashlib
import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import MIB, Contents, Entry, FetchOptions, total_size
from pilotlight_predictor.storage.uri import safe_relative

MAX_HEADER = MIB  # of a member: tarfile reads extended headers into memory
WHITEOUT = ".wh."  # prefix of the name of a file that a layer of an image deletes
_EXTENDED = {b"x", b"g", b"X", b"L", b"K"}  # types of headers of PAX and GNU


def new_hash(digest: str, size: int) -> Any:
    """Return a running hash for `sha256:…` or `git-sha1:…` (git hashes a header first); None without a digest."""
    algorithm = digest.partition(":")[0]
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "git-sha1":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return None


def check_digest(running: Any, entry: Entry, redacted: str) -> None:
    expected = entry.digest.partition(":")[2]
    if running is not None and running.hexdigest() != expected:
        algorithm = entry.digest.partition(":")[0]
        raise LoadFailed(
            f"{redacted}: {entry.path} has {algorithm} {running.hexdigest()}, must be {expected}; check the hash or"
            " the source"
        )


def check_size(contents: Contents, expected: int | None, redacted: str) -> None:
    total = total_size(contents.entries)
    if expected is not None and total >= 0 and total != expected:
        raise LoadFailed(f"{redacted}: size = {total} bytes, must be {expected}; check the URI or the size")


def check_space(needed: int, directory: Path, options: FetchOptions, redacted: str) -> None:
    free = shutil.disk_usage(directory).free
    if needed + options.spare_bytes > free:
        raise LoadFailed(
            f"{redacted}: needs {_mib(needed)} in {directory} and {_mib(options.spare_bytes)} spare, but only"
            f" {_mib(free)} are free; free some space or use another directory"
        )


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"


def check_file(path: Path, sha256: str, size: int | None, redacted: str) -> None:
    """Check a file that is used in place, or whose size was unknown before the download."""
    if size is not None and path.is_file() and path.stat().st_size != size:
        raise LoadFailed(f"{redacted}: size = {path.stat().st_size} bytes, must be {size}; check the URI or the size")
    if not sha256:
        return
    if not path.is_file():
        raise LoadFailed(f"{redacted}: sha256 needs one file, this is a directory; use a file or an archive")
    with path.open("rb") as file:
        running = hashlib.file_digest(file, "sha256")
    check_digest(running, Entry(path.name, -1, digest=f"sha256:{sha256}"), redacted)


class _Budget:
    """Limits on members and bytes, checked before each member is written."""

    def __init__(self, redacted: str, target: Path, options: FetchOptions) -> None:
        self._redacted = redacted
        self._target = target
        self._options = options
        self.members = 0
        self._bytes = 0

    def admit(self, name: str, size: int) -> Path:
        """Return the path of a member within the limits. Raise LoadFailed for one that is too large or outside."""
        self.members += 1
        if self.members > self._options.max_members:
            raise self.refused(f"has more than {self._options.max_members} members (max_members)")
        self.count(size)
        check_space(size, self._target, self._options, self._redacted)
        return self._target / self.inside(name)

    def count(self, size: int) -> None:
        """Count bytes that are unpacked, written or not."""
        self._bytes += size
        if self._bytes > self._options.max_unpacked_bytes:
            raise self.refused(f"unpacks to more than {self._options.max_unpacked_bytes} bytes (max_unpacked_bytes)")

    def inside(self, name: str) -> str:
        clean = name.removeprefix("./").rstrip("/")
        if clean in {"", "."}:
            return "."
        if not safe_relative(clean):
            raise self.refused(f"has the member {name!r}, which is outside of it")
        return clean

    def refused(self, reason: str) -> LoadFailed:
        return LoadFailed(f"{self._redacted}: the archive {reason}; pack plain files with relative names")


def unpack(archive: Path, target: Path, redacted: str, options: FetchOptions) -> None:
    """Unpack into `target`, which must not exist; on failure it is removed."""
    budget = _Budget(redacted, target, options)
    with _unpacking(target, redacted):
        (_unzip if archive.name.lower().endswith(".zip") else _untar)(archive, target, budget)


def unpack_layers(entries: Sequence[Entry], files: Path, target: Path, redacted: str, options: FetchOptions) -> None:
    """Move and unpack downloaded `files` into `target`, which must not exist: a later layer wins.

    Each tar is removed once it is unpacked, so the disk holds the model and one tar.
    """
    budget = _Budget(redacted, target, options)
    with _unpacking(target, redacted):
        for entry in entries:
            if entry.members is None:
                (target / entry.path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(files / entry.path, target / entry.path)
                budget.members += 1
                continue
            _untar(files / entry.path, target, budget, entry.members)
            (files / entry.path).unlink()
        if not budget.members:
            raise LoadFailed(f"{redacted}: no layer has a file of a model; an image has them under /models")


@contextmanager
def _unpacking(target: Path, redacted: str) -> Iterator[None]:
    target.mkdir(parents=True)
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise LoadFailed(f"{redacted}: cannot be unpacked ({error}); check that it is a whole archive") from error
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


class _Member(tarfile.TarInfo):
    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type in _EXTENDED and self.size > MAX_HEADER:
            raise tarfile.ReadError(f"a member has a header of {self.size} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


def _untar(archive: Path, target: Path, budget: _Budget, folder: str = "") -> None:
    """Unpack the members below `folder`, without its name."""
    links: list[tuple[Path, Path]] = []
    with tarfile.open(archive, mode="r:*", tarinfo=_Member) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if not name.startswith(folder):
                budget.count(member.size if member.isreg() else 0)
                continue
            member.name = name[len(folder) :] or "."
            path = budget.admit(member.name, member.size if member.isreg() else 0)
            if folder and path.name.startswith(WHITEOUT):
                raise budget.refused(f"deletes {path.name.removeprefix(WHITEOUT)!r} of an earlier layer")
            if member.isreg():
                path.unlink(missing_ok=True)  # it may be a hard link to another file
            if member.isreg() or member.isdir():
                tar.extract(member, target, filter="data")
            elif member.issym() or member.islnk():
                links.append((path, target / _link_target(member, budget, folder)))
            else:
                raise budget.refused(f"has the member {member.name!r}, which is neither file nor directory")
    for path, source in links:
        if not source.is_file():
            raise budget.refused(f"has the link {path.name!r} to {source.name!r}, which is no file of the archive")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.link(source, path)


def _link_target(member: tarfile.TarInfo, budget: _Budget, folder: str) -> str:
    """Return the member that a link points to: symbolic ones are relative to their directory, hard ones to the root."""
    if member.islnk():
        return budget.inside(posixpath.normpath(member.linkname.removeprefix("./").removeprefix(folder)))
    if member.linkname.startswith("/"):
        raise budget.refused(f"has the link {member.name!r} to {member.linkname!r}, which is outside of it")
    return budget.inside(posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname)))


def _unzip(archive: Path, target: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            path = budget.admit(member.filename, member.file_size)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise budget.refused(f"has the member {member.filename!r}, which is neither file nor directory")
            if member.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            left = member.file_size
            with bundle.open(member) as source, path.open("wb") as copy:
                while piece := source.read(MIB):
                    left -= len(piece)
                    if left < 0:  # a zip may hold more than its header declares
                        raise budget.refused("has a member that is longer than its header states")
                    copy.write(piece)
