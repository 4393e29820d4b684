"""Streams of events and log lines, one JSON document per line.

The backend is polled only while a client follows; empty lines as heartbeats detect a disconnected client.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from aiohttp import web
from msgspec import json

from pilotlight import __version__
from pilotlight.api.log_files import LogQuery
from pilotlight.api.route_types import Route
from pilotlight.api.services import SERVICE, flag_parameter, key_of
from pilotlight.api.target_adapters import BACKEND, SHUTTING_DOWN
from pilotlight.contract import HEADER_VERSION
from pilotlight.errors import NotFound, UsageError
from pilotlight.targets.target import Key

HEARTBEAT_S: Final = 10.0
PAGE: Final = 200


async def events(request: web.Request) -> web.StreamResponse:
    key = key_of(request) if "name" in request.match_info else None
    backend = request.app[BACKEND]
    if key is not None and not await backend.events(key, 0, 1):
        await backend.call(lambda target: target.status(key))  # NotFound, unless a deleted service still has events
    return await _stream_lines(request, _events(request, key, int_parameter(request, "after", 0)))


async def logs(request: web.Request) -> web.StreamResponse:
    replica, tail = request.query.get("replica", ""), int_parameter(request, "tail", -1)
    flags = (flag_parameter(request, name) for name in ("previous", "follow", "all_ended"))
    query = LogQuery(replica, tail, *flags)
    return await _stream_lines(
        request, await request.app[BACKEND].logs(key_of(request), query, lambda: _wait_for_more(request))
    )


def int_parameter(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not re.fullmatch(r"-?[0-9]{1,18}", text):  # SQLite has 63 bits
        raise UsageError(f"{name} is {text[:40]!r}, must be a whole number of up to 18 digits")
    return int(text)


async def _stream_lines(request: web.Request, batches: AsyncIterator[Sequence[Any]]) -> web.StreamResponse:
    """Write each batch as lines."""
    headers = {HEADER_VERSION: __version__, "Content-Type": "application/x-ndjson"}
    lines = (b"".join(json.encode(each) + b"\n" for each in batch) async for batch in batches)
    return await stream(request, headers, lines, b"\n")


async def stream(
    request: web.Request, headers: dict[str, str], pieces: AsyncIterator[bytes], heartbeat: bytes
) -> web.StreamResponse:
    """Write each piece, and heartbeats while they are empty, until they end or the client disconnects."""
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    written_at = monotonic()
    with suppress(ConnectionError, NotFound):  # the client disconnected, or the service was deleted
        async for piece in pieces:
            if piece or monotonic() - written_at > HEARTBEAT_S:
                await response.write(piece or heartbeat)
                written_at = monotonic()
        await response.write_eof()
    return response


async def _wait_for_more(request: web.Request) -> bool:
    """Wait for the poll interval; return False where the stream ends."""
    if not flag_parameter(request, "follow"):
        return False
    with suppress(TimeoutError):
        await asyncio.wait_for(request.app[SHUTTING_DOWN].wait(), request.app[BACKEND].poll_s)
    return not request.app[SHUTTING_DOWN].is_set()


async def _events(request: web.Request, key: Key | None, after: int) -> AsyncIterator[Sequence[Any]]:
    while True:
        batch = await request.app[BACKEND].events(key, after, PAGE)
        after = batch[-1].number if batch else after
        yield batch
        if len(batch) < PAGE and not await _wait_for_more(request):
            return


ROUTES: Final = (
    Route("GET", "/api/v1/events", events, "Events, one JSON line each.", query=("after", "follow")),
    Route("GET", f"{SERVICE}/events", events, "Events of one service.", query=("after", "follow")),
    Route(
        "GET", f"{SERVICE}/logs", logs, "Logs of its replicas, one JSON line each.",
        query=("replica", "tail", "previous", "follow", "all_ended"),
    ),
)  # fmt: skip
