"""A new state beside a gateway or replicas that serve is a lost one."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from pilotlight.control_plane import lost_state
from pilotlight.errors import PlatformError
from pilotlight.gateway.control_link import ControlServer, Hello
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import Event


def test_only_what_runs_makes_a_new_state_a_lost_one() -> None:
    assert lost_state.refusal(Path("state.db"), 0, []) == ""
    assert lost_state.refusal(Path("state.db"), 1, [7, 5]) == (
        "state.db is new while the gateway routes 1 service and replicas run (pids 5, 7): the state was lost; restore "
        "a backup: platformctl restore FILE, or start with nothing deployed: platformctl up --forget"
    )


@pytest.mark.parametrize("routes", [0, 2])
def test_the_routes_of_a_living_gateway_count_even_while_everything_is_at_zero(tmp_path: Path, routes: int) -> None:
    home = Home(tmp_path).create()

    async def play() -> None:
        gateway = ControlServer(home.root, lambda: Hello("0", 1, 9, routes), lambda *_: None)
        await gateway.open()
        store = Store.open(home.database)
        try:
            if not routes:
                await lost_state.check(home, store)
                return
            with pytest.raises(PlatformError, match="is new while the gateway routes 2 services: the state was lost"):
                await lost_state.check(home, store)
            store.add_event(Event("2025-03-01T12:00:00Z", "default", "iris", "Service/iris", "Normal", "Deleted", ""))
            await lost_state.check(home, store)
        finally:
            store.close()
            gateway.release(disconnect=True)

    asyncio.run(play())


def test_a_folder_that_was_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    held = control_process_launcher.lock(home)
    assert held is not None
    with held:
        assert not lost_state.folder_removed(home, held.fileno())
        os.rename(home.root, tmp_path / "elsewhere")
        assert lost_state.folder_removed(home, held.fileno())
        home.create()
        home.lock.touch()
        assert lost_state.folder_removed(home, held.fileno())
        shutil.rmtree(home.root)
        assert lost_state.folder_removed(home, held.fileno())
