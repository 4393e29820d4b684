"""Tables for the gateway, and replicas that end only when it has confirmed that nobody can reach them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

import pytest
from tests.eventually import eventually_async

from pilotlight.gateway.control_link import Applied
from pilotlight.gateway.routing_table import Route, Table
from pilotlight.targets.local.gateway.gateway_link import GatewayLink
from pilotlight.targets.local.gateway.publisher import Publisher


class Link:
    """A gateway that confirms when it is told to."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.confirmed = asyncio.Event()

    async def publish(self, table: Table) -> Applied:
        self.tables.append(table)
        await self.confirmed.wait()
        return Applied(table.generation)


class Stage:
    def __init__(self) -> None:
        self.link = Link()
        self.routes: tuple[Route, ...] = (Route("default", "iris"),)
        self.gone: list[str] = []
        self.told: list[tuple[Route, ...]] = []
        self.publisher = Publisher(
            cast(GatewayLink, self.link), self._routed, self._farewell, self._tell
        )  # fmt: skip
        self.trouble: list[Exception] = []  # of the next farewells
        self.unroutable: list[Exception] = []  # of the next tables

    def _routed(self) -> tuple[Route, ...]:
        if self.unroutable:
            raise self.unroutable.pop()
        return self.routes

    def _farewell(self, replica: str) -> None:
        if self.trouble:
            raise self.trouble.pop()
        self.gone.append(replica)

    def _tell(self, routes: Iterable[Route]) -> None:
        assert len(self.link.tables) == len(self.told), "before the gateway hears of it"
        self.told.append(tuple(routes))

    async def until(self, holds: Callable[[], bool]) -> None:
        await eventually_async(holds, pause_s=0)


def staged(case: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        stage = Stage()
        stage.publisher.start()
        try:
            await case(stage)
        finally:
            await stage.publisher.close()

    asyncio.run(run())


async def rested() -> None:
    """Long enough for everything that is due on the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_replica_ends_only_after_the_gateway_has_confirmed_a_table_without_it() -> None:
    async def case(stage: Stage) -> None:
        stage.publisher.retire("a")
        await stage.until(lambda: len(stage.link.tables) == 1)
        await rested()
        assert stage.gone == []
        assert stage.publisher.retiring == {"a"}
        stage.link.confirmed.set()
        await stage.until(lambda: stage.gone == ["a"])
        assert stage.publisher.retiring == set()

    staged(case)


def test_what_is_retired_while_a_table_is_under_way_waits_for_the_next_one() -> None:
    async def case(stage: Stage) -> None:
        stage.publisher.retire("a")
        await stage.until(lambda: len(stage.link.tables) == 1)
        stage.publisher.retire("b")
        stage.routes = (Route("default", "other"),)
        stage.link.confirmed.set()
        await stage.until(lambda: stage.gone == ["a", "b"])
        assert [table.generation for table in stage.link.tables] == [1, 2]

    staged(case)


def test_who_awaits_the_confirmation_is_not_content_with_a_table_that_was_under_way() -> None:
    async def case(stage: Stage) -> None:
        stage.publisher.changed()
        await stage.until(lambda: len(stage.link.tables) == 1)
        stage.routes = ()
        awaited = asyncio.create_task(stage.publisher.wait_applied())
        await rested()
        stage.link.confirmed.set()
        await stage.until(lambda: len(stage.link.tables) == 2 or awaited.done())
        assert len(stage.link.tables) == 2
        await asyncio.wait_for(awaited, 60)
        assert stage.publisher.shares(("default", "iris")) is None
        await asyncio.wait_for(stage.publisher.wait_applied(), 60)  # nothing changed: nothing is sent
        assert len(stage.link.tables) == 2

    staged(case)


def test_who_no_longer_awaits_a_confirmation_holds_up_nobody() -> None:
    async def case(stage: Stage) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stage.publisher.wait_applied(), 0.01)
        stage.link.confirmed.set()
        await asyncio.wait_for(stage.publisher.wait_applied(), 60)

    staged(case)


def test_a_table_that_says_the_same_is_not_sent_again() -> None:
    async def case(stage: Stage) -> None:
        stage.link.confirmed.set()
        stage.publisher.changed()
        await stage.until(lambda: len(stage.link.tables) == 1)
        stage.publisher.changed()
        await rested()
        assert len(stage.link.tables) == len(stage.told) == 1
        stage.publisher.retire("a")  # it was in no table, so nothing is left to confirm
        await stage.until(lambda: stage.gone == ["a"])
        assert len(stage.link.tables) == 1

    staged(case)


def test_generations_go_on_from_what_a_living_gateway_has() -> None:
    async def case(stage: Stage) -> None:
        stage.link.confirmed.set()
        stage.publisher.generation = 41
        stage.publisher.changed()
        await stage.until(lambda: [table.generation for table in stage.link.tables] == [42])

    staged(case)


def test_a_farewell_that_fails_is_told_and_said_again_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def case(stage: Stage) -> None:
        stage.link.confirmed.set()
        stage.trouble = [OSError("Too many open files")]
        stage.publisher.retire("a")
        await stage.until(lambda: not stage.trouble)
        stage.publisher.retire("b")
        await stage.until(lambda: {"a", "b"} == set(stage.gone))
        assert stage.publisher.retiring == set()

    staged(case)
    assert "the removal of a failed" in caplog.text


def test_a_table_that_cannot_be_made_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    async def case(stage: Stage) -> None:
        stage.link.confirmed.set()
        stage.unroutable = [KeyError("iris")]
        stage.publisher.changed()
        await stage.until(lambda: len(stage.link.tables) == 1)

    staged(case)
    assert "a table for the gateway failed" in caplog.text


def test_ports_lead_to_a_service_once_the_gateway_has_confirmed_it() -> None:
    async def case(stage: Stage) -> None:
        stage.routes = (Route("default", "iris", port=8100, grpc_port=8101),)
        stage.publisher.changed()
        await stage.until(lambda: len(stage.link.tables) == 1)
        await rested()
        assert stage.publisher.ports(("default", "iris")) == (0, 0)
        stage.link.confirmed.set()
        await stage.until(lambda: stage.publisher.ports(("default", "iris")) == (8100, 8101))

    staged(case)
