"""Log files of replicas: tail and follow."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

from pilotlight.errors import NotFound
from pilotlight.targets.local.supervisor.logs import MAX_ENDED_LOGS
from pilotlight.targets.target import LogLine

CHUNK: Final = 256 * 1024
WaitForMore = Callable[[], Awaitable[bool]]  # waits for the poll interval; False: the stream ends
FindLogs = Callable[[bool], Sequence[tuple[str, Path]]]  # files by replica; True: of terminated replicas


class LogQuery(Struct, frozen=True):
    """Options of a log request. `replica` is a name prefix, such as a revision; `tail`: last lines, -1: all.

    `all_ended`: of every ended replica, not only of the last.
    """

    replica: str = ""
    tail: int = -1
    previous: bool = False
    follow: bool = False
    all_ended: bool = False


@dataclass(slots=True)
class LogCursor:
    """Read position in one replica's log, with the incomplete last line."""

    path: Path
    position: int = 0
    rest: bytes = b""

    def lines(self, ended: bool) -> list[str]:
        """Return new lines; a file truncated by rotation is read from its beginning."""
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


def tail_offset(path: Path, count: int) -> int:
    """Return the offset of the last `count` lines, searching backwards from the end."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        position = file.seek(0, 2)
        if count < 0:
            return 0
        chunks, lines = list[bytes](), 0
        while position and lines <= count:
            step = min(CHUNK, position)
            position -= step
            file.seek(position)
            chunks.append(file.read(step))
            lines += chunks[-1].count(b"\n")
        tail = b"".join(reversed(chunks))
        last = b"".join(tail.splitlines(keepends=True)[-count:] if count else ())
        return position + len(tail) - len(last)
    return 0


def stream_lines(find: FindLogs, query: LogQuery, wait_for_more: WaitForMore) -> AsyncIterator[Sequence[LogLine]]:
    """Return batches of lines; a replica that starts while following is read from its first line."""
    if not _files(find, query) and query.replica:  # errors are raised before the response begins
        names = [name for ended in (False, True) for name, _ in find(ended)]
        if not any(name.startswith(query.replica) for name in names):
            there = ", ".join(names) or "none"
            hint = f"the platform keeps the logs of the last {MAX_ENDED_LOGS} ended replicas of a service"
            raise NotFound(f"no replica or revision is called {query.replica}; there are {there}", hint)
    return _read(find, query, wait_for_more)


async def _read(find: FindLogs, query: LogQuery, wait_for_more: WaitForMore) -> AsyncIterator[Sequence[LogLine]]:
    cursors: dict[str, LogCursor] = {}
    first = more = True
    while more:
        for name, path in _files(find, query):
            if name not in cursors:
                cursors[name] = LogCursor(path, tail_offset(path, query.tail) if first else 0)
        first = False
        batch = [LogLine(name, line) for name, log in cursors.items() for line in log.lines(ended=False)]
        yield batch
        more = bool(batch) or await wait_for_more()
    yield [LogLine(name, line) for name, log in cursors.items() for line in log.lines(ended=True)]


def _files(find: FindLogs, query: LogQuery) -> list[tuple[str, Path]]:
    """Return the matching files; of ended replicas the last or all, also if `replica` names nothing that runs."""
    for ended in (True,) if query.previous else (False, True) if query.replica else (False,):
        if files := [each for each in find(ended) if each[0].startswith(query.replica)]:
            return files[-1:] if ended and not query.all_ended else files
    return []
