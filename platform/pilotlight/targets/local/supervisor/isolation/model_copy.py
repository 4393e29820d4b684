"""Copy of an org's model, from which its process is started: the org can put links in place of its files at any time.

No link in the source is followed. Links in a model's folder stay links; they are checked in the copy, which is private.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count, islice
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.targets.local.model_snapshots import clone, disk_space, is_companion, may_import
from pilotlight.wire.model_formats.python_code import literal_paths

MAX_FILES: Final = 10_000
MAX_DEPTH: Final = 64  # each level holds a descriptor
TOO_MUCH: Final = f"it has more than {MAX_FILES} files, or a path of more than {MAX_DEPTH} folders"
FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a FIFO must not block


def copy_model(model: Path, folder: Path, *, sandboxed: bool) -> Path:
    """Copy a folder, or a file and its companions, into a new folder. Return the model's path there.

    With `sandboxed` its code may run: the packages and files that it names are copied too, and links may lead out of
    the model, where there is nothing. Raise for a path that leads through a link, and otherwise for a link out.
    """
    target, copied = folder / model.name, count(1)
    folder.mkdir(mode=0o700)
    try:
        with ExitStack() as stack:
            if len(model.parts) > MAX_DEPTH:
                raise OSError(errno.E2BIG, TOO_MUCH)
            parent = None
            for part in model.parts[:-1]:
                parent = os.open(part, FOLDER, dir_fd=parent)
                stack.callback(os.close, parent)
            _copy(model.name, parent, target, copied)
            if target.is_file():
                code = sandboxed and may_import(target)  # data alone imports and reads nothing
                siblings = os.open(".", FILE, dir_fd=parent)
                stack.callback(os.close, siblings)
                for name in {*os.listdir(siblings)} - {model.name}:
                    if _belongs(model, name, siblings, code):
                        _copy(name, siblings, folder / name, copied)
                # The names are those of the copied code: the org cannot change it any more.
                for name in sorted(literal_paths(target)) if code else ():
                    _copy_named(PurePosixPath(name), siblings, folder, copied)
    except OSError as error:
        message = f"model_path = {model}, cannot be copied for the start: {error.strerror}"
        raise UsageError(message, "use regular files without links, and leave disk space for a copy") from None
    if not sandboxed:
        check_links(target)
    return target


def _belongs(model: Path, name: str, siblings: int, code: bool) -> bool:
    """Return whether a name beside a model file is a file, or with `code` a package, that it is copied with.

    No link is.
    """
    mode = os.lstat(name, dir_fd=siblings).st_mode
    if not S_ISDIR(mode):
        return S_ISREG(mode) and is_companion(model, name)
    with suppress(OSError):
        return code and S_ISREG(os.lstat(f"{name}/__init__.py", dir_fd=siblings).st_mode)
    return False


def _copy_named(name: PurePosixPath, parent: int, folder: Path, copied: Iterator[int]) -> None:
    """Copy a file below the folder `parent` that the model's code names; nothing if there is none without links."""
    above = os.path.join(os.path.realpath(folder), *name.parts[:-1])
    # A package was copied with its links: what has become a folder since must not be written through one.
    if os.path.lexists(folder / name) or os.path.realpath((folder / name).parent) != above:
        return
    with ExitStack() as stack:
        try:
            for part in name.parts[:-1]:
                parent = os.open(part, FOLDER, dir_fd=parent)
                stack.callback(os.close, parent)
            if not S_ISREG(os.lstat(name.name, dir_fd=parent).st_mode):
                return
        except (OSError, ValueError):  # also of a text that is no path
            return
        (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy(name.name, parent, folder / name, copied)


def check_links(model: Path) -> None:
    """Raise for a link in a model's folder that leads out of it."""
    for path in islice(model.rglob("*"), MAX_FILES):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(model)):
            name = path.relative_to(model.parent)
            raise UsageError(f"artifact: {name} is a link out of the model's folder", "copy the file there")


def _copy(name: str, parent: int | None, target: Path, copied: Iterator[int], depth: int = 0) -> None:
    """Copy a file or folder of the folder `parent`, with its permissions; a link only from within the model."""
    if next(copied) > MAX_FILES or depth > MAX_DEPTH:
        raise OSError(errno.E2BIG, TOO_MUCH)
    if depth and S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
        target.symlink_to(os.readlink(name, dir_fd=parent))
        return
    source = os.open(name, FILE, dir_fd=parent)
    try:
        status, (free, spare) = os.fstat(source), disk_space(target.parent)
        if S_ISDIR(status.st_mode):
            target.mkdir(mode=0o700)
            for each in os.listdir(source):
                _copy(each, source, target / each, copied, depth + 1)
        elif S_ISREG(status.st_mode) and status.st_size + spare <= free:
            with open(source, "rb", 0, closefd=False) as original, target.open("xb") as copy:
                clone(original, copy, status.st_size)
        else:
            raise OSError(errno.EINVAL, f"{name} is not a file of at most {free - spare:,} bytes, the free disk space")
        target.chmod(status.st_mode & 0o777 | (0o700 if target.is_dir() else 0o600))
    finally:
        os.close(source)
