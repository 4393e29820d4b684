"""What goes on while a caller listens: events and log lines, one JSON document a line.

Both are polled while, and only while, somebody follows; an empty line now and then shows a caller who is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from aiohttp import web
from msgspec import json

from pilotlight import __version__
from pilotlight.api.areas import Route
from pilotlight.api.keys import BACKING, ENDING
from pilotlight.api.log_files import Wanted
from pilotlight.api.services import SERVICE, flag, key_of
from pilotlight.contract import HEADER_VERSION
from pilotlight.errors import NotFound, UsageError
from pilotlight.targets.target import Key

BEAT_S: Final = 10.0
PAGE: Final = 200


async def events(request: web.Request) -> web.StreamResponse:
    key = key_of(request) if "name" in request.match_info else None
    backing = request.app[BACKING]
    if key is not None and not await backing.events(key, 0, 1):
        await backing.status(key)  # a service that is gone has its events still; one that never was has none
    return await _stream(request, _events(request, key, number(request, "after", 0)))


async def logs(request: web.Request) -> web.StreamResponse:
    replica, tail = request.query.get("replica", ""), number(request, "tail", -1)
    wanted = Wanted(replica, tail, flag(request, "previous"), flag(request, "follow"))
    return await _stream(request, await request.app[BACKING].logs(key_of(request), wanted, lambda: _again(request)))


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
    if request.method == "HEAD":
        return response
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
        await asyncio.wait_for(request.app[ENDING].wait(), request.app[BACKING].poll_s)
    return not request.app[ENDING].is_set()


async def _events(request: web.Request, key: Key | None, after: int) -> AsyncIterator[Sequence[Any]]:
    while True:
        batch = await request.app[BACKING].events(key, after, PAGE)
        after = batch[-1].number if batch else after
        yield batch
        if len(batch) < PAGE and not await _again(request):
            return


ROUTES: Final = (
    Route("GET", "/api/v1/events", events, "What happened, a line of JSON each.", query=("after", "follow")),
    Route("GET", f"{SERVICE}/events", events, "What happened to one service.", query=("after", "follow")),
    Route(
        "GET", f"{SERVICE}/logs", logs, "What its replicas wrote, a line of JSON each.",
        query=("replica", "tail", "previous", "follow"),
    ),
)  # fmt: skip
