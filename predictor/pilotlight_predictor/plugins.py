"""Which packages add dialects or backends by entry points. Most machines have none, and every cold start asks.

`importlib.metadata` takes 20 ms to import and to read what is installed. Looking for our name in the files that
it would read takes 2 ms, and only where that is found is it asked.
"""

import os
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_OURS: Final = b"[pilotlight."


def plugins(group: str) -> "tuple[EntryPoint, ...]":
    """What installed packages registered under `group`, which begins with `pilotlight.`."""
    if not any(_mentioned(folder) for folder in sys.path):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


@cache
def _mentioned(folder: str) -> bool:
    """Whether any package in this folder of the path has entry points for us. Read once: packages do not come later."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        return any(_OURS in _entry_points(entry) for entry in entries)
    return False


def _entry_points(entry: "os.DirEntry[str]") -> bytes:
    if entry.name.endswith((".dist-info", ".egg-info")):
        with suppress(OSError), open(os.path.join(entry.path, "entry_points.txt"), "rb") as file:
            return file.read()
    return b""
