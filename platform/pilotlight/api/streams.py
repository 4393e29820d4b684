"""What goes on while a caller listens: events and log lines, one JSON document a line.

Both are polled while, and only while, somebody follows; an empty line now and then shows a caller who is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from aiohttp import web
from msgspec import json

from pilotlight import __version__
from pilotlight.api.keys import ENDING, ENGINE
from pilotlight.api.services import flag, key_of
from pilotlight.contract import HEADER_VERSION
from pilotlight.errors import NotFound, UsageError
from pilotlight.targets.target import Key

POLL_S: Final = 0.1
BEAT_S: Final = 10.0
PAGE: Final = 200
CHUNK: Final = 256 * 1024


async def events(request: web.Request) -> web.StreamResponse:
    key = key_of(request) if "name" in request.match_info else None
    if key is not None and not request.app[ENGINE].events(key, 0, 1):
        request.app[ENGINE].status(key)  # a service that is gone has its events still; one that never was has none
    return await _stream(request, _events(request, key, number(request, "after", 0)))


async def logs(request: web.Request) -> web.StreamResponse:
    key, replica = key_of(request), request.query.get("replica", "")
    _files(request, key, replica)  # its errors, before the reply begins
    return await _stream(request, _lines(request, key, replica, number(request, "tail", -1)))


def number(request: web.Request, name: str, default: int) -> int:
    written = request.query.get(name, str(default))
    try:
        return int(written)
    except ValueError:
        raise UsageError(f"{name} is {written!r}, must be a whole number") from None


async def _stream(request: web.Request, found: AsyncIterator[Sequence[Any]]) -> web.StreamResponse:
    """Each batch as lines, until the batches end, the caller goes or the process does."""
    response = web.StreamResponse(headers={HEADER_VERSION: __version__, "Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    spoken = monotonic()
    with suppress(ConnectionError, NotFound):  # the caller is gone, or the service
        async for batch in found:
            beat = not batch and monotonic() - spoken > BEAT_S
            if batch or beat:
                await response.write(b"".join(json.encode(each) + b"\n" for each in batch) or b"\n")
                spoken = monotonic()
        await response.write_eof()
    return response


async def _again(request: web.Request) -> bool:
    """After a pause; False: the stream is over."""
    if not flag(request, "follow"):
        return False
    with suppress(TimeoutError):
        await asyncio.wait_for(request.app[ENDING].wait(), POLL_S)
    return not request.app[ENDING].is_set()


async def _events(request: web.Request, key: Key | None, after: int) -> AsyncIterator[Sequence[Any]]:
    while True:
        batch = request.app[ENGINE].events(key, after, PAGE)
        after = batch[-1].number if batch else after
        yield batch
        if len(batch) < PAGE and not await _again(request):
            return


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


def _files(request: web.Request, key: Key, replica: str) -> list[tuple[str, Path]]:
    """`replica` is the beginning of a name, so a revision finds its own. Of those that ended, only the last."""
    previous = flag(request, "previous")
    found = [each for each in request.app[ENGINE].log_files(key, "", previous) if each[0].startswith(replica)]
    return found[-1:] if previous else found


async def _lines(request: web.Request, key: Key, replica: str, tail: int) -> AsyncIterator[Sequence[Any]]:
    """Replica by replica; one that starts while we follow is read from its first line."""
    readings: dict[str, Reading] = {}
    first = more = True
    while more:
        for name, path in _files(request, key, replica):
            if name not in readings:
                readings[name] = Reading(path)
                if first:
                    readings[name].skip_to_last(tail)
        first = False
        batch = [{"replica": name, "line": line} for name, log in readings.items() for line in log.lines(ended=False)]
        yield batch
        more = bool(batch) or await _again(request)
    yield [{"replica": name, "line": line} for name, log in readings.items() for line in log.lines(ended=True)]
