"""A gateway that ends: it answers what it has, and its successor the rest."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.linked import (
    DEADLINE_S,
    Linked,
    SmallReplica,
    ask,
    in_loop,
    linked,
    new_link,
    replica,
    route,
)

from pilotlight.gateway.control_link import Wake
from pilotlight.targets.local.gateway import gateway_link


@in_loop
async def test_stopping_ends_the_gateway_after_what_is_in_flight(tmp_path: Path) -> None:
    async with replica(ready=False) as one:
        made = new_link(tmp_path)
        await made.link.start(["127.0.0.1:0/http"])
        await made.publish(route(one.config))
        slow = asyncio.create_task(ask(made.port, "/iris/slow"))
        await eventually_async(lambda: one.asked, "the slow request")
        closing = asyncio.create_task(made.link.close(stop_gateway=True, drain_s=20.0))
        await eventually_async(lambda: not made.home.gateway_socket.exists(), "given up")
        one.open.set()
        assert (await slow).status == 200
        await closing
        await eventually_async(lambda: not Path(f"/proc/{made.link.pid}").exists(), "its end")


@in_loop
async def test_a_gateway_ended_by_a_signal_answers_what_it_has_and_its_successor_the_rest(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica(ready=False) as one:
        slow, _ = await ended_with_a_request(made, one)
        later = asyncio.create_task(ask(made.port, "/iris/later"))
        await eventually_async(lambda: len(one.asked) == 2, "the later request")
        one.open.set()
        assert [(await slow).status, (await later).status] == [200, 200]


@in_loop
async def test_a_second_signal_to_a_gateway_that_ends_does_not_unseat_its_successor(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica(ready=False) as one:
        slow, ended = await ended_with_a_request(made, one)
        successor = made.link._gateway
        os.kill(ended, signal.SIGTERM)
        one.open.set()
        assert (await slow).status == 200
        await eventually_async(lambda: not made.link._leaving, "the end of the first")
        assert made.link._gateway is successor
        assert (await made.publish(route(one.config))).generation == 2


@in_loop
async def test_a_request_held_by_a_gateway_that_ends_gets_its_replica(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route())
        held = asyncio.create_task(ask(made.port, "/iris/"))
        await made.hears(Wake)
        ended = made.link.pid
        os.kill(ended, signal.SIGTERM)
        await eventually_async(lambda: made.link.pid != ended, "a successor")
        later = asyncio.create_task(ask(made.port, "/iris/"))
        await made.publish(route(one.config))
        assert [(await held).status, (await later).status] == [200, 200]
        await eventually_async(lambda: not made.link._leaving, "the end of the first")


async def ended_with_a_request(made: Linked, one: SmallReplica) -> tuple[asyncio.Task[Any], int]:
    """End a gateway that has a request; return the request and the gateway's pid once it has a successor."""
    await made.publish(route(one.config))
    slow = asyncio.create_task(ask(made.port, "/iris/slow"))
    await eventually_async(lambda: one.asked, "the slow request")
    ended = made.link.pid
    os.kill(ended, signal.SIGTERM)
    await eventually_async(lambda: made.link.pid != ended, "a successor")
    return slow, ended


@asynccontextmanager
async def leaving(made: Linked, one: SmallReplica) -> AsyncIterator[int]:
    """A gateway that has a request and is ended, so that a successor takes the others; it does nothing for now."""
    slow, ended = await ended_with_a_request(made, one)
    await made.publish(route(one.config))  # nothing that was told before is still on its way
    os.kill(ended, signal.SIGSTOP)
    try:
        yield ended
    finally:
        os.kill(ended, signal.SIGCONT)
        one.open.set()
        assert (await slow).status == 200


async def until_unknown(made: Linked) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await ask(made.port, "/iris/")).status != 404:
            await asyncio.sleep(0.005)


@in_loop
async def test_a_table_is_in_force_when_a_gateway_that_still_has_requests_obeys_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_link, "LEAVING_S", 600.0)
    async with linked(tmp_path) as made, replica(ready=False) as one, leaving(made, one) as ended:
        publishing = asyncio.create_task(made.publish())
        await until_unknown(made)
        assert (await ask(made.port, "/iris/")).status == 404
        assert not publishing.done()
        os.kill(ended, signal.SIGCONT)
        assert (await publishing).generation == 3


@in_loop
async def test_a_gateway_that_ends_and_hears_nothing_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked(tmp_path) as made, replica(ready=False) as one, leaving(made, one):
        monkeypatch.setattr(gateway_link, "LEAVING_S", 0.05)
        assert (await made.publish()).generation == 3
        monkeypatch.setattr(gateway_link, "LEAVING_S", 600.0)
        assert (await asyncio.wait_for(made.publish(), DEADLINE_S)).generation == 4
