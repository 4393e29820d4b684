"""Media on this machine: files below the operator's roots, without following symlinks."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath

from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.references import LocalFile
from pilotlight.microservices.media.refusals import MediaError
from pilotlight.microservices.media.web import CHUNK, FetchBudget

NOT_ALLOWED = "is no file that media may be taken from; the operator opens folders with PILOTLIGHT_MEDIA_ROOTS"


def read(file: LocalFile, budget: FetchBudget) -> bytes:
    for root, inside in _within(file.path, budget.limits):
        with _open(root, inside) as descriptor:
            if descriptor is not None:
                return _content(descriptor, budget)
    raise MediaError(
        NOT_ALLOWED, f"{file.path}: not a file below {', '.join(budget.limits.roots) or 'any open folder'}"
    )


def _within(path: str, limits: Limits) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each root that contains the path, with the parts below it; a relative path is tried in every root."""
    for root in limits.roots:
        whole = PurePosixPath(os.path.normpath(os.path.join(root, path)))
        if whole.is_relative_to(os.path.normpath(root)):
            yield root, whole.relative_to(os.path.normpath(root)).parts


@contextmanager
def _open(root: str, inside: tuple[str, ...]) -> Iterator[int | None]:
    """Open the file one component at a time with O_NOFOLLOW, safe against symlink races; None: no such file."""
    folder, plain = os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with ExitStack() as stack:
        try:
            parent = os.open(root, folder)
            stack.callback(os.close, parent)
            for part in inside[:-1]:
                parent = os.open(part, folder | os.O_NOFOLLOW, dir_fd=parent)
                stack.callback(os.close, parent)
            descriptor = os.open(inside[-1], plain, dir_fd=parent) if inside else None
        except OSError:
            descriptor = None
        if descriptor is not None:
            stack.callback(os.close, descriptor)
            descriptor = descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        yield descriptor


def _content(descriptor: int, budget: FetchBudget) -> bytes:
    limit = budget.limits.bytes
    chunks = list[bytes]()
    size = 0
    while chunk := os.read(descriptor, CHUNK):
        size += len(chunk)
        if size > limit:
            raise MediaError(f"has more than the {limit} bytes that are taken")
        budget.spend(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)
