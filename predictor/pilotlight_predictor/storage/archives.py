"""Unpacks .tar, .tar.gz, .tgz and .zip that strangers made, into a directory that is thrown away if anything is wrong.

No link is ever created: a link in a tar that points to a file of the same archive becomes a second name of that file,
any other link is refused. So no member can be written through a link to somewhere else.
"""

import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import IO

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.checks import check_space
from pilotlight_predictor.storage.interface import MIB, FetchOptions
from pilotlight_predictor.storage.uri import safe_relative


class _Budget:
    """Counts members and bytes before they are written."""

    def __init__(self, shown: str, target: Path, options: FetchOptions) -> None:
        self._shown = shown
        self._target = target
        self._options = options
        self._members = 0
        self._bytes = 0

    def admit(self, name: str, size: int) -> Path:
        """Where the member goes, once it is known to be neither too much nor outside."""
        self._members += 1
        self._bytes += size
        if self._members > self._options.max_members:
            raise self.refused(f"has more than {self._options.max_members} members (max_members)")
        if self._bytes > self._options.max_unpacked_bytes:
            raise self.refused(f"unpacks to more than {self._options.max_unpacked_bytes} bytes (max_unpacked_bytes)")
        check_space(size, self._target, self._options, self._shown)
        return self._target / self.inside(name)

    def inside(self, name: str) -> str:
        clean = name[2:] if name.startswith("./") else name
        clean = clean.rstrip("/")
        if clean in {"", "."}:
            return "."
        if not safe_relative(clean):
            raise self.refused(f"has the member {name!r}, which leads out of it")
        return clean

    def refused(self, reason: str) -> LoadFailed:
        return LoadFailed(f"{self._shown}: the archive {reason}; pack plain files with relative names")


def unpack(archive: Path, target: Path, shown: str, options: FetchOptions) -> None:
    """Unpacks into `target`, which must not exist; on failure nothing of it is left."""
    target.mkdir(parents=True)
    budget = _Budget(shown, target, options)
    try:
        if archive.name.lower().endswith(".zip"):
            _unzip(archive, target, budget)
        else:
            _untar(archive, target, budget)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise LoadFailed(f"{shown}: cannot be unpacked ({error}); check that it is a whole archive") from error
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _untar(archive: Path, target: Path, budget: _Budget) -> None:
    links: list[tuple[Path, str]] = []
    with tarfile.open(archive, mode="r:*") as tar:
        for member in tar:
            place = budget.admit(member.name, member.size if member.isreg() else 0)
            if member.isreg() or member.isdir():
                tar.extract(member, target, filter="data")
            elif member.issym() or member.islnk():
                links.append((place, _link_target(member, budget)))
            else:
                raise budget.refused(f"has the member {member.name!r}, which is neither file nor directory")
    for place, source in links:
        _second_name(target / source, place, budget)


def _link_target(member: tarfile.TarInfo, budget: _Budget) -> str:
    """The member that a link means: a symbolic one counts from its own directory, a hard one from the root."""
    base = posixpath.dirname(member.name) if member.issym() else ""
    if member.linkname.startswith("/"):
        raise budget.refused(f"has the link {member.name!r} to {member.linkname!r}, which leads out of it")
    return budget.inside(posixpath.normpath(posixpath.join(base, member.linkname)))


def _second_name(source: Path, place: Path, budget: _Budget) -> None:
    if not source.is_file():
        raise budget.refused(f"has the link {place.name!r} to {source.name!r}, which is no file of the archive")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    os.link(source, place)


def _unzip(archive: Path, target: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            place = budget.admit(member.filename, member.file_size)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise budget.refused(f"has the member {member.filename!r}, which is neither file nor directory")
            if member.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with bundle.open(member) as source, place.open("wb") as copy:
                _copy(source, copy, member.file_size, budget)


def _copy(source: IO[bytes], copy: IO[bytes], size: int, budget: _Budget) -> None:
    """A member may hold more than its header says; what was not admitted is not written."""
    left = size
    while piece := source.read(MIB):
        left -= len(piece)
        if left < 0:
            raise budget.refused("has a member that is longer than it says")
        copy.write(piece)
