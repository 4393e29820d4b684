"""What happens by itself, without a process: a machinery that was never started."""

import asyncio
from pathlib import Path

import pytest
from tests.local_target.runs import revision, revision_of, running, service, workload

from pilotlight.targets.local.home import Home
from pilotlight.targets.local.machinery import EngineSettings, Machinery
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.store.store import Store


def test_a_crash_pause_is_looked_at_once_when_it_is_over_however_often_somebody_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[ServiceRun] = []

    async def play() -> None:
        home = Home(tmp_path / "home").create()
        store = Store.open(home.database)
        machinery = Machinery(home, EngineSettings(1, pilot_light=False), store, lambda: 0.0)
        monkeypatch.setattr(machinery, "settle", settled.append)
        run = running(service(workload(revision())))
        revision_of(run).next_start = 0.05
        for _ in range(50):
            machinery.fleet.adjust(run, 0.0)
        over = asyncio.get_running_loop().time() + 0.2
        async with asyncio.timeout(10):
            while asyncio.get_running_loop().time() < over or not settled:
                await asyncio.sleep(0.01)
        store.close()

    asyncio.run(play())
    assert len(settled) == 1
