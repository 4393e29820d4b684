"""Atomic replacement of a file or directory."""

import os
import shutil
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def replace_path(fresh: Path, target: Path) -> None:
    """Move `fresh` to `place` and remove the old content. Both must be on one file system."""
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
