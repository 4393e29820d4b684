"""A target behind the API: asked in threads, its events in an order that a follower can go on from."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from pilotlight.api.log_files import LogQuery
from pilotlight.api.target_adapters import TargetBackend
from pilotlight.errors import NotFound
from pilotlight.targets.target import Event, Key, LogLine, Target

KEY = ("default", "iris")


class Cluster:
    """Tells events without numbers, as clusters do, and logs that wait."""

    poll_s = 0.5
    embedded = False

    def __init__(self) -> None:
        self.told = [self.event("a"), self.event("b")]
        self.asked_by: set[str] = set()
        self.gate = threading.Event()

    @staticmethod
    def event(message: str) -> Event:
        return Event("2026-01-01T00:00:00Z", *KEY, "Pod/x", "Normal", "Pulled", message)

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        self.asked_by.add(threading.current_thread().name)
        return iter(self.told)

    def logs(self, key: Key, **wanted: Any) -> Iterator[str]:
        if key != KEY:
            raise NotFound("no such service")
        return self._lines()

    def _lines(self) -> Iterator[str]:
        yield "first"
        yield ""
        self.gate.wait(20)
        yield "last"


async def again() -> bool:
    return False


def backing(cluster: Cluster) -> TargetBackend:
    return TargetBackend(cast(Target, cluster))


def test_events_have_numbers_that_stay_and_only_later_ones_are_told_again() -> None:
    async def story() -> None:
        cluster = Cluster()
        behind = backing(cluster)
        first = await behind.events(None, 0, 10)
        assert [(event.message, event.number) for event in first] == [("a", 1), ("b", 2)]
        assert await behind.events(None, 2, 10) == []
        cluster.told = [cluster.told[1], cluster.event("c")]  # the oldest is gone, as it is after an hour
        (fresh,) = await behind.events(None, 2, 10)
        assert (fresh.message, fresh.number) == ("c", 3)
        assert [event.number for event in await behind.events(None, 0, 10)] == [2, 3]
        assert threading.current_thread().name not in cluster.asked_by
        behind.close()

    asyncio.run(story())


def test_lines_come_as_they_are_written_and_blank_ones_stay() -> None:
    async def story() -> None:
        cluster = Cluster()
        found = await backing(cluster).logs(KEY, LogQuery(follow=True), again)
        assert await anext(found) == [LogLine("", "first")]
        assert await anext(found) == [LogLine("", "")]
        cluster.gate.set()
        assert [batch async for batch in found if batch] == [[LogLine("", "last")]]

    asyncio.run(story())


def test_what_is_not_there_is_told_before_a_stream_begins() -> None:
    with pytest.raises(NotFound):
        asyncio.run(backing(Cluster()).logs(("default", "nobody"), LogQuery(), again))
