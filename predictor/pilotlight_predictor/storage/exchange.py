"""Puts a finished file or directory in the place of another so that no reader finds the place empty."""

import os
import shutil
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(fresh: Path, place: Path) -> None:
    """`fresh` moves to `place`; what was there is removed. Both are on one file system."""
    if not place.exists() or (fresh.is_file() and place.is_file()):
        os.replace(fresh, place)
        return
    if not _swapped(fresh, place):
        # A file system without the exchange (some network ones): for an instant the place is empty.
        aside = fresh.with_name(fresh.name + ".old")
        os.rename(place, aside)
        os.rename(fresh, place)
        fresh = aside
    if fresh.is_dir():
        shutil.rmtree(fresh)
    else:
        fresh.unlink()


def _swapped(first: Path, second: Path) -> bool:
    """Linux swaps two names in one step (renameat2); elsewhere there is no such call."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0)
