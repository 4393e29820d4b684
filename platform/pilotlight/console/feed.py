"""`/console/api/feed`: server-sent events for one open console. Only what changed is sent, and a beat when nothing did.

services  {"at", "changed": rows, "gone": ids, "past": points by id, in the first one}
events    what happened since, oldest first
canary    the canaries of the service that `?service=NAMESPACE/NAME` names, whole
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from time import monotonic, time
from typing import Any, Final

from aiohttp import web
from msgspec import json

from pilotlight.api.keys import BACKING, ENDING
from pilotlight.console import canaries
from pilotlight.console.gate import holds
from pilotlight.console.keys import WATCH
from pilotlight.console.watch import Row, changes
from pilotlight.errors import PlatformError

POLL_S: Final = 0.5
BEAT_S: Final = 10.0
EVENTS: Final = 100
BEAT: Final = b": beat\n\n"


async def feed(request: web.Request) -> web.StreamResponse:
    """Until the reader goes, logs out or the process ends; a reader that comes back begins anew."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    spoken = monotonic()
    with suppress(ConnectionError, PlatformError):  # the reader is gone, or the target: it asks again
        async for batch in _batches(request):
            if batch or monotonic() - spoken > BEAT_S:
                await response.write(batch or BEAT)
                spoken = monotonic()
        await response.write_eof()
    return response


async def _batches(request: web.Request) -> AsyncIterator[bytes]:
    sent: Mapping[str, Row] = {}
    after, first, canary = 0, True, b""
    while True:
        batch, sent = await _services(request, sent, first)
        happened = await request.app[BACKING].events(None, after, EVENTS)
        if happened:
            after = happened[-1].number
            batch += message("events", happened)
        first, before, canary = False, canary, await _canary(request)
        yield batch + (canary if canary != before else b"")
        if await _over(request):
            return


async def _canary(request: web.Request) -> bytes:
    """Of the service whose page is open; a service may be none, or gone."""
    namespace, _, name = request.query.get("service", "").partition("/")
    if not name:
        return b""
    return message("canary", canaries.told(await request.app[BACKING].canary((namespace, name))))


async def _services(request: web.Request, sent: Mapping[str, Row], first: bool) -> tuple[bytes, Mapping[str, Row]]:
    watch, wall = request.app[WATCH], time()
    seen = dict(await watch.seen(monotonic(), wall))
    changed, gone = changes(sent, seen)
    if not (first or changed or gone):
        return b"", sent
    told: dict[str, Any] = {"at": round(wall, 2), "changed": changed, "gone": gone}
    if first:
        told["past"] = {name: list(points) for name, points in watch.past.items()}
    return message("services", told), seen


async def _over(request: web.Request) -> bool:
    """After a pause: whether nobody may listen any more. Looking on keeps a session alive."""
    with suppress(TimeoutError):
        await asyncio.wait_for(request.app[ENDING].wait(), max(POLL_S, request.app[BACKING].poll_s))
    return request.app[ENDING].is_set() or not holds(request)


def message(event: str, data: Any) -> bytes:
    """JSON has no bare line feeds, so one data line is enough."""
    return b"event: " + event.encode() + b"\ndata: " + json.encode(data) + b"\n\n"
