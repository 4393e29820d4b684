"""`/console/api/feed`: server-sent events for one open console. Only changes are sent, and heartbeats.

services  {"at", "changed": rows, "gone": ids, "past": points by id, in the first message}
events    new events, oldest first
canary    the canary history of the service that `?service=NAMESPACE/NAME` names
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from time import monotonic, time
from typing import Any, Final

from aiohttp import web
from msgspec import json

from pilotlight.api.backend import BACKEND, SHUTTING_DOWN
from pilotlight.console import actions
from pilotlight.console.change_watcher import ServiceRow, changes
from pilotlight.console.sessions import STATUS_CACHE, has_session
from pilotlight.errors import PlatformError

POLL_S: Final = 0.5
HEARTBEAT_S: Final = 10.0
MAX_EVENTS: Final = 100
HEARTBEAT: Final = b": beat\n\n"


async def feed(request: web.Request) -> web.StreamResponse:
    """Send events until the client disconnects, its session ends or the process shuts down."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    written_at = monotonic()
    with suppress(ConnectionError, PlatformError):  # the client disconnected or the target failed: the page reconnects
        async for batch in _batches(request):
            if batch or monotonic() - written_at > HEARTBEAT_S:
                await response.write(batch or HEARTBEAT)
                written_at = monotonic()
        await response.write_eof()
    return response


async def _batches(request: web.Request) -> AsyncIterator[bytes]:
    sent: Mapping[str, ServiceRow] = {}
    after, first, canary = 0, True, b""
    while True:
        batch, sent = await _services(request, sent, first)
        events = await request.app[BACKEND].events(None, after, MAX_EVENTS)
        if events:
            after = events[-1].number
            batch += message("events", events)
        first, previous, canary = False, canary, await _canary(request)
        yield batch + (canary if canary != previous else b"")
        if await _closed(request):
            return


async def _canary(request: web.Request) -> bytes:
    """Return the message for the service whose page is open, empty where there is none."""
    namespace, _, name = request.query.get("service", "").partition("/")
    if not name:
        return b""
    return message("canary", actions.history_body(await request.app[BACKEND].canary((namespace, name))))


async def _services(
    request: web.Request, sent: Mapping[str, ServiceRow], first: bool
) -> tuple[bytes, Mapping[str, ServiceRow]]:
    cache, wall = request.app[STATUS_CACHE], time()
    rows = dict(await cache.refresh(monotonic(), wall))
    changed, gone = changes(sent, rows)
    if not (first or changed or gone):
        return b"", sent
    data: dict[str, Any] = {"at": round(wall, 2), "changed": changed, "gone": gone}
    if first:
        data["past"] = {name: list(points) for name, points in cache.history.items()}
    return message("services", data), rows


async def _closed(request: web.Request) -> bool:
    """Wait for the poll interval; return whether the feed ends. An open feed keeps its session alive."""
    with suppress(TimeoutError):
        await asyncio.wait_for(request.app[SHUTTING_DOWN].wait(), max(POLL_S, request.app[BACKEND].poll_s))
    return request.app[SHUTTING_DOWN].is_set() or not has_session(request)


def message(event: str, data: Any) -> bytes:
    """JSON has no bare line feeds, so one data line is enough."""
    return b"event: " + event.encode() + b"\ndata: " + json.encode(data) + b"\n\n"
