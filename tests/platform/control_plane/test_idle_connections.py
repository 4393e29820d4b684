"""Connections to the control API without a request are closed, those with one stay."""

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import web

from pilotlight.control_plane import idle_connections
from pilotlight.control_plane.idle_connections import IDLE_S, MAX_CONNECTIONS, find_idle, overdue


class Connection(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def connection(requests: int = 0, busy: bool = False) -> Connection:
    return Connection(_request_count=requests, _current_request=object() if busy else None)


def test_a_connection_is_overdue_after_its_time_without_a_request() -> None:
    silent, used, busy = connection(), connection(1), connection(busy=True)
    idle = find_idle([silent, used, busy], {}, 0.0)
    assert overdue(idle, 3, IDLE_S - 1) == []
    used._request_count = 2
    idle = find_idle([silent, used, busy], idle, IDLE_S)
    assert overdue(idle, 3, IDLE_S) == [silent]
    assert find_idle([used], idle, IDLE_S) == {used: (2, IDLE_S)}


def test_beyond_the_maximum_the_oldest_idle_ones_go_first() -> None:
    early, late = connection(), connection()
    idle = find_idle([early, late], find_idle([early], {}, 0.0), 1.0)
    assert overdue(idle, MAX_CONNECTIONS + 1, 1.0) == [early]
    assert overdue(idle, MAX_CONNECTIONS, 1.0) == []


def test_a_client_that_sends_half_a_head_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_connections, "INTERVAL_S", 0.01)
    monkeypatch.setattr(idle_connections, "IDLE_S", 0.1)

    async def slowly() -> bytes:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        idle_connections.close_idle_connections(runner)
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(b"GET / HTTP/1.1\r\nHost: loc")
        try:
            return await asyncio.wait_for(reader.read(), 30)
        finally:
            writer.close()
            await runner.cleanup()

    assert asyncio.run(slowly()) == b""
