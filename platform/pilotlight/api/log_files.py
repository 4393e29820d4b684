"""Logs of replicas as files: read from their last lines on, and followed while somebody listens."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

CHUNK: Final = 256 * 1024
Again = Callable[[], Awaitable[bool]]  # after a pause; False: the stream is over
Find = Callable[[bool], Sequence[tuple[str, Path]]]  # files by replica; True: of those that ended


class Wanted(Struct, frozen=True):
    """`replica` is the beginning of a name, so a revision finds its own. `tail`: lines from the end, -1: all."""

    replica: str = ""
    tail: int = -1
    previous: bool = False
    follow: bool = False


class LogLine(Struct, frozen=True):
    replica: str
    line: str


@dataclass(slots=True)
class Reading:
    """One replica's log: how far it was read, and the line that has not ended yet."""

    path: Path
    position: int = 0
    rest: bytes = b""

    def skip_to_last(self, count: int) -> None:
        """Before the last `count` lines, found from the end: a log may be long. Negative: all of them."""
        self.position = start_of_last(self.path, count)

    def lines(self, ended: bool) -> list[str]:
        """What came since; a file that was cut by rotation is read from its beginning."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            if self.path.stat().st_size < self.position:
                self.position = 0
            file.seek(self.position)
            self.rest += file.read(CHUNK)
            self.position = file.tell()
        *whole, self.rest = self.rest.split(b"\n")
        if ended and self.rest:
            whole, self.rest = [*whole, self.rest], b""
        return [line.decode(errors="replace") for line in whole]


def start_of_last(path: Path, count: int) -> int:
    """The byte at which the last `count` lines begin."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        position = file.seek(0, 2)
        if count < 0:
            return 0
        tail = b""
        while position and tail.rstrip(b"\n").count(b"\n") < count:
            step = min(CHUNK, position)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
        kept = b"".join(tail.splitlines(keepends=True)[-count:] if count else ())
        return position + len(tail) - len(kept)
    return 0


def lines(find: Find, wanted: Wanted, again: Again) -> AsyncIterator[Sequence[LogLine]]:
    """Replica by replica; one that starts while we follow is read from its first line."""
    _files(find, wanted)  # its errors, before the reply begins
    return _read(find, wanted, again)


async def _read(find: Find, wanted: Wanted, again: Again) -> AsyncIterator[Sequence[LogLine]]:
    readings: dict[str, Reading] = {}
    first = more = True
    while more:
        for name, path in _files(find, wanted):
            if name not in readings:
                readings[name] = Reading(path)
                if first:
                    readings[name].skip_to_last(wanted.tail)
        first = False
        batch = [LogLine(name, line) for name, log in readings.items() for line in log.lines(ended=False)]
        yield batch
        more = bool(batch) or await again()
    yield [LogLine(name, line) for name, log in readings.items() for line in log.lines(ended=True)]


def _files(find: Find, wanted: Wanted) -> list[tuple[str, Path]]:
    """Of those that ended, only the last."""
    found = [each for each in find(wanted.previous) if each[0].startswith(wanted.replica)]
    return found[-1:] if wanted.previous else found
