"""Pickles, which can run any code when they are read: opened only if pinned by `--trust-pickle FILE=SHA256`.

Shared by the backends whose files are, or may be, pickles.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import IO

from pilotlight.contract import trust_pickle_setting
from pilotlight_predictor.errors import LoadFailed


def hide_main_module() -> None:
    """Hide the server's `__main__`: a pickle that names `__main__.log` means a function of the training script."""
    sys.modules["__main__"] = ModuleType("__main__")


def open_trusted(path: Path, trusted: Mapping[str, str], what: str, instead: str) -> IO[bytes]:
    """Open a pinned file. Raise LoadFailed unless `trusted` has its name and SHA-256.

    Read the file that is returned: the name may point to another one by now. `what` the file holds and what to do
    `instead` are parts of the message.
    """
    if path.name not in trusted:
        raise refusal(path, what, instead)
    file = path.open("rb")
    digest, pinned = _digest(file), trusted[path.name].lower()
    if digest == pinned:
        file.seek(0)
        return file
    file.close()
    raise _refusal(path, f"has changed since it was pinned: its SHA-256 was {pinned} and is {digest};", digest)


def refusal(path: Path, what: str, instead: str) -> LoadFailed:
    """Return the error for a file that is not pinned, with the option that would pin it."""
    with path.open("rb") as file:
        return _refusal(path, f"holds {what}, which can run arbitrary code when loaded: {instead}, or,", _digest(file))


def _refusal(path: Path, why: str, digest: str) -> LoadFailed:
    pin = f"{path.name}={digest}"  # `deploy` replaces what to set by its own form
    advice = f"set --trust-pickle {pin} (for a manifest: {trust_pickle_setting(pin)})"
    return LoadFailed(f"{path.name} {why} if you trust its author, {advice}")


def _digest(file: IO[bytes]) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
