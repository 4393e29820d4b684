"""`/console/api/feed`: server-sent events for one open console. Only changes are sent, and heartbeats.

services  {"changed": rows, "gone": ids, "first": whether it is the first message}
events    new events, oldest first
canary    the canary history of the service that `?service=NAMESPACE/NAME` names
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from aiohttp import web
from msgspec import json

from pilotlight.api.streams import stream
from pilotlight.api.target_adapters import BACKEND, SHUTTING_DOWN
from pilotlight.console import actions
from pilotlight.console.sessions import STATUS_CACHE, find_session
from pilotlight.console.status_cache import ServiceRow, changes
from pilotlight.errors import PlatformError

POLL_S: Final = 0.5
MAX_EVENTS: Final = 100
HEARTBEAT: Final = b": beat\n\n"


async def feed(request: web.Request) -> web.StreamResponse:
    """Send events until the client disconnects, its session ends or the process shuts down."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    return await stream(request, headers, _batches(request), HEARTBEAT)


async def _batches(request: web.Request) -> AsyncIterator[bytes]:
    sent: Mapping[str, ServiceRow] = {}
    after, first, canary = 0, True, b""
    backend, stopping = request.app[BACKEND], request.app[SHUTTING_DOWN]
    namespace, _, name = request.query.get("service", "").partition("/")  # the page of this service is open
    with suppress(PlatformError):  # the target failed: the page reconnects
        while first or (not stopping.is_set() and find_session(request) is not None):  # an open feed renews its session
            batch, sent = await _services(request, sent, first)
            events = await backend.events(None, after, MAX_EVENTS)
            if events:
                after = events[-1].number
                batch += message("events", events)
            first, previous = False, canary
            if name:
                record = await backend.call(lambda target: target.canary((namespace, name)))
                canary = message("canary", actions.history_body(record))
            yield batch + (canary if canary != previous else b"")
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), max(POLL_S, backend.poll_s))


async def _services(
    request: web.Request, sent: Mapping[str, ServiceRow], first: bool
) -> tuple[bytes, Mapping[str, ServiceRow]]:
    rows = dict(await request.app[STATUS_CACHE].refresh(monotonic()))
    changed, gone = changes(sent, rows)
    if not (first or changed or gone):
        return b"", sent
    return message("services", {"changed": changed, "gone": gone, "first": first}), rows


def message(event: str, data: Any) -> bytes:
    """JSON has no bare line feeds, so one data line is enough."""
    return b"event: " + event.encode() + b"\ndata: " + json.encode(data) + b"\n\n"
