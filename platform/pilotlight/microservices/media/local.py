"""Media on this machine: files below the folders that an operator has opened, reached through no symbolic link."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath

from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.references import LocalFile
from pilotlight.microservices.media.refusals import Refusal
from pilotlight.microservices.media.web import PIECE, Allowance

NOT_THERE = "is no file that media may be taken from; the operator opens folders with PILOTLIGHT_MEDIA_ROOTS"


def read(file: LocalFile, allowance: Allowance) -> bytes:
    for root, inside in _within(file.path, allowance.limits):
        with _opened(root, inside) as descriptor:
            if descriptor is not None:
                return _content(descriptor, allowance)
    raise Refusal(NOT_THERE, f"{file.path}: not a file below {', '.join(allowance.limits.roots) or 'any open folder'}")


def _within(path: str, limits: Limits) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each root that has the path by its name, with the parts below it; a relative path is meant below every root."""
    for root in limits.roots:
        whole = PurePosixPath(os.path.normpath(os.path.join(root, path)))
        if whole.is_relative_to(os.path.normpath(root)):
            yield root, whole.relative_to(os.path.normpath(root)).parts


@contextmanager
def _opened(root: str, inside: tuple[str, ...]) -> Iterator[int | None]:
    """Step by step from the root, so that no link is followed and none can be put in the way; None: no such file."""
    folder, plain = os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with ExitStack() as held:
        try:
            here = os.open(root, folder)
            held.callback(os.close, here)
            for part in inside[:-1]:
                here = os.open(part, folder | os.O_NOFOLLOW, dir_fd=here)
                held.callback(os.close, here)
            found = os.open(inside[-1], plain, dir_fd=here) if inside else None
        except OSError:
            found = None
        if found is not None:
            held.callback(os.close, found)
            found = found if stat.S_ISREG(os.fstat(found).st_mode) else None
        yield found


def _content(descriptor: int, allowance: Allowance) -> bytes:
    most = allowance.limits.bytes
    pieces = list[bytes]()
    size = 0
    while piece := os.read(descriptor, PIECE):
        size += len(piece)
        if size > most:
            raise Refusal(f"has more than the {most} bytes that are taken")
        allowance.take(len(piece))
        pieces.append(piece)
    return b"".join(pieces)
