"""A new state beside a gateway or replicas that serve is a lost one."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from pilotlight.control_plane import launcher_registry, lost_state
from pilotlight.errors import PlatformError
from pilotlight.gateway.control_link import ControlServer, Hello
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.slurm.job import Note, home_key
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


QUEUE = "17|RUNNING|n1|iris-1|{comment}|None\\n18|COMPLETED|n1|iris-2|{comment}|None"
PROGRAMS = {"docker": "[ $1 != ps ] || echo cid iris-1", "squeue": f'printf "{QUEUE}"'}
TRACES = {"docker": "iris-1.container", "slurm": "slurm/iris-1"}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose only replica is one of docker and of slurm, as programs say that print what theirs do."""
    home = Home(tmp_path / "home").create()
    for name, text in PROGRAMS.items():
        comment = Note(home_key(home)).text
        (tmp_path / name).write_text(f"#!/bin/sh\n{text.replace('{comment}', comment)}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return home


@pytest.mark.parametrize("name", TRACES)
def test_containers_and_jobs_count_as_what_serves(elsewhere: Home, name: str) -> None:
    store = Store.open(elsewhere.database)
    try:
        asyncio.run(lost_state.check(elsewhere, store))  # nobody is asked who has left no trace
        (elsewhere.run / TRACES[name]).mkdir(parents=True)
        with pytest.raises(PlatformError, match=f"is new while {name} runs iris-1: the state was lost"):
            asyncio.run(lost_state.check(elsewhere, store))
        (elsewhere.root.parent / {"docker": "docker", "slurm": "squeue"}[name]).write_text("#!/bin/sh\nexit 1\n")
        with pytest.raises(PlatformError, match=rf"is new while {name} may run replicas \(.* failed: exit code 1\)"):
            asyncio.run(lost_state.check(elsewhere, store))
    finally:
        store.close()


def test_who_has_left_no_trace_in_a_home_has_nothing_left_to_end_there(elsewhere: Home) -> None:
    (elsewhere.root.parent / "squeue").write_text("#!/bin/sh\nexit 1\n")  # installed, and not configured
    assert asyncio.run(launcher_registry.sweep_all(elsewhere)) == []
    (elsewhere.run / TRACES["slurm"]).mkdir(parents=True)
    assert asyncio.run(launcher_registry.sweep_all(elsewhere)) == ["slurm: squeue failed: exit code 1"]


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
