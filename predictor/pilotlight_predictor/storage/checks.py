"""Checks of a download: size, hash and free disk space."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.interface import MIB, Contents, Entry, FetchOptions


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
            f"{redacted}: {entry.path} has {algorithm} {running.hexdigest()}, must be {expected};"
            " the file is not the one that was meant, check the hash or its source"
        )


def check_size(contents: Contents, expected: int | None, redacted: str) -> None:
    total = total_size(contents.entries)
    if expected is not None and total >= 0 and total != expected:
        raise LoadFailed(f"{redacted}: size = {total} bytes, must be {expected}; check the URI or the size")


def total_size(entries: Sequence[Entry]) -> int:
    """Return the sum of sizes; -1 if the size of an entry is unknown."""
    return -1 if any(entry.size < 0 for entry in entries) else sum(entry.size for entry in entries)


def free_bytes(directory: Path) -> int:
    stats = os.statvfs(directory)
    return stats.f_bavail * stats.f_frsize


def check_space(needed: int, directory: Path, options: FetchOptions, redacted: str) -> None:
    free = free_bytes(directory)
    if needed + options.spare_bytes > free:
        raise LoadFailed(
            f"{redacted}: needs {_mib(needed)} in {directory} and {_mib(options.spare_bytes)} to spare,"
            f" but only {_mib(free)} are free; free some space or use another directory"
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
        raise LoadFailed(f"{redacted}: sha256 is for one file and this is a directory; pin a file or an archive")
    with path.open("rb") as file:
        running = hashlib.file_digest(file, "sha256")
    check_digest(running, Entry(path.name, -1, digest=f"sha256:{sha256}"), redacted)
