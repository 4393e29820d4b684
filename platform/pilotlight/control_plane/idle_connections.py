"""Idle connections of the control API. aiohttp waits for a request without end, and each one takes a descriptor."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

INTERVAL_S: Final = 5.0
IDLE_S: Final = 60.0  # without a whole request head
MAX_CONNECTIONS: Final = 2000
Idle = Mapping[Any, tuple[int, float]]  # by connection: its requests so far, and since when it has none


def close_idle_connections(runner: web.AppRunner, before: Idle | None = None) -> None:
    """Close them, now and every 5 s until the runner's cleanup."""
    if runner.server is None:
        return
    loop = asyncio.get_running_loop()
    idle = find_idle(runner.server.connections, before or {}, loop.time())
    for connection in overdue(idle, len(runner.server.connections), loop.time()):
        connection.force_close()
    loop.call_later(INTERVAL_S, close_idle_connections, runner, idle)


def find_idle(connections: Iterable[Any], before: Idle, now: float) -> Idle:
    waiting = [(each, each._request_count) for each in connections if each._current_request is None]
    known = {each: before.get(each, (count, now)) for each, count in waiting}
    return {each: known[each] if known[each][0] == count else (count, now) for each, count in waiting}


def overdue(idle: Idle, total: int, now: float) -> list[Any]:
    """Return the connections to close: those idle for too long, and the oldest ones beyond the maximum."""
    oldest = sorted(idle, key=lambda each: idle[each][1])
    late = sum(now - since >= IDLE_S for _, since in idle.values())
    return oldest[: max(late, total - MAX_CONNECTIONS)]
