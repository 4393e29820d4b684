"""Notes on a disk that is full for a while: none is lost, none is written out of turn, and none is waited for."""

import asyncio
import logging

import pytest

from pilotlight.errors import PlatformError
from pilotlight.targets.local.control import persistence
from pilotlight.targets.local.control.persistence import WriteBehindQueue


class Disk:
    def __init__(self) -> None:
        self.full = False
        self.written: list[str] = []

    def put(self, line: str) -> None:
        if self.full:
            raise PlatformError("state.db: the disk is full")
        self.written.append(line)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(persistence, "RETRY_S", 0.001)
    return Disk()


async def emptied(disk: Disk, count: int) -> None:
    async with asyncio.timeout(60):
        while len(disk.written) < count:
            await asyncio.sleep(0.001)


def test_a_note_is_written_at_once_where_there_is_room(disk: Disk) -> None:
    WriteBehindQueue().put("a", lambda: disk.put("a"))
    assert disk.written == ["a"]


def test_notes_wait_for_room_and_keep_their_order(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        kept = WriteBehindQueue()
        disk.full = True
        for about, line in (("a", "a1"), ("b", "b1"), ("a", "a2")):
            kept.put(about, lambda line=line: disk.put(line))  # type: ignore[misc]
        assert disk.written == []
        disk.full = False
        await emptied(disk, 2)
        kept.put("c", lambda: disk.put("c1"))
        assert disk.written == ["b1", "a2", "c1"]

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert [record.getMessage() for record in caplog.records] == [
        "state.db: the disk is full; events are stored when the database is writable again"
    ]


def test_what_still_waits_at_the_end_is_tried_once_more(disk: Disk) -> None:
    async def play() -> None:
        kept = WriteBehindQueue()
        disk.full = True
        kept.put("a", lambda: disk.put("a"))
        disk.full = False
        kept.close()
        assert disk.written == ["a"]

    asyncio.run(play())


def test_a_disk_that_stays_full_keeps_nobody_from_ending(disk: Disk) -> None:
    async def play() -> None:
        kept = WriteBehindQueue()
        disk.full = True
        kept.put("a", lambda: disk.put("a"))
        kept.close()
        assert disk.written == []

    asyncio.run(play())
