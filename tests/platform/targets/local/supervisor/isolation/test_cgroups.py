"""Memory and CPU limits, by control groups where this machine gives them to us and by the watchdog elsewhere."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, alive, launch, program

from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.isolation import cgroups
from pilotlight.targets.local.supervisor.isolation.cgroups import Limits, find_groups, group_key

MIB = 1 << 20
HUNGRY = f"""exec {sys.executable} -c '
import time
held = []
while len(held) < 100:
    held.append(bytearray(4 << 20))
    time.sleep(0.02)
time.sleep(600)
'"""
ROOT_V1 = os.getuid() == 0 and Path("/sys/fs/cgroup/memory/cgroup.procs").exists()


def test_without_groups_a_watchdog_ends_what_uses_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "find_groups", lambda *_, **__: None)

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, HUNGRY)) as stage:
            assert stage.supervisor.limits == "watchdog"
            stage.supervisor.launch(launch(memory_limit=64 * MIB))
            ended = await stage.until("exited")
            used = int(ended.reason.removeprefix("used ").split()[0])
            assert ended.reason == f"used {used} MiB, limit 64 MiB; raise resources.limits.memory"
            assert 64 <= used < 1024
            assert (ended.signal, ended.crashed) == (9, True)

    asyncio.run(play())


def test_without_groups_children_in_sessions_of_their_own_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find_groups", lambda *_, **__: None)
    script = f"setsid sleep 600 & echo $! > {tmp_path}/child; sleep 0.5; exit 3"

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, script)) as stage:
            stage.supervisor.launch(launch())
            await stage.until("exited")
            child = int((tmp_path / "child").read_text())
            await eventually_async(lambda: not alive(child), "the end of the child")

    asyncio.run(play())


@pytest.mark.skipif(not ROOT_V1, reason="needs root and control groups of version 1")
def test_as_root_the_kernel_keeps_the_memory_limit(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, HUNGRY)) as stage:
            assert stage.supervisor.limits == "cgroup v1"
            stage.supervisor.launch(launch(memory_limit=64 * MIB))
            ended = await stage.until("exited")
            assert ended.reason == "ended by the kernel: memory limit 64 MiB reached; raise resources.limits.memory"
            assert ended.signal == 9

    asyncio.run(play())
    assert not list(Path("/sys/fs/cgroup/memory").rglob(group_key(Home(tmp_path / "home"))))


@pytest.mark.skipif(not ROOT_V1, reason="needs root and control groups of version 1")
def test_as_root_the_kernel_keeps_the_cpu_limit(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "while :; do :; done")) as stage:
            replica = stage.supervisor.launch(launch(cpu_limit=0.1))
            place = Path("/sys/fs/cgroup/cpu")
            await eventually_async(lambda: bool(list(place.rglob(f"{replica.id}/cgroup.procs"))))
            group = next(place.rglob(f"{replica.id}/cgroup.procs")).parent
            await eventually_async(lambda: bool((group / "cgroup.procs").read_text()))
            assert (group / "cpu.cfs_quota_us").read_text() == "10000\n"
            await eventually_async(lambda: "nr_throttled 0\n" not in (group / "cpu.stat").read_text())

    asyncio.run(play())


def test_groups_of_version_2_are_used_where_they_are_delegated(tmp_path: Path) -> None:
    """The files of the kernel's interface, in a folder: what is written to them is what the kernel would read."""
    own = tmp_path / "user.slice"
    own.mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    groups = find_groups("ours", tmp_path, "0::/user.slice\n")
    assert groups is not None
    assert groups.name == "cgroup v2"
    assert (own / "cgroup.subtree_control").read_text() == (own / "ours/cgroup.subtree_control").read_text()
    groups.confine("iris-1", 4711, 512 * MIB, 1.5)
    written = {path.name: path.read_text() for path in (own / "ours/iris-1").iterdir()}
    assert written == {
        "memory.max": str(512 * MIB), "memory.swap.max": "0", "cpu.max": "150000 100000", "cgroup.procs": "4711",
    }  # fmt: skip
    (own / "ours/iris-1/memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert groups.finish("iris-1")


def test_groups_that_are_not_ours_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    (tmp_path / "ours").write_text("a file where the group should be")
    assert find_groups("ours", tmp_path, "0::/\n") is None
    assert find_groups("ours", tmp_path / "nothing", "") is None


def test_a_cpu_limit_without_groups_lowers_the_priority_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find_groups", lambda *_, **__: None)

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "exec sleep 600")) as stage:
            for name in ("a", "b"):
                stage.supervisor.launch(launch(name, cpu_limit=0.5))

            def lowered() -> bool:
                known = [replica.pid for replica in stage.supervisor.replicas() if replica.pid]
                return len(known) == 2 and all(os.getpriority(os.PRIO_PROCESS, pid) == 5 for pid in known)

            await eventually_async(lowered)

    asyncio.run(play())
    assert len([record for record in caplog.records if "CPU limits" in record.getMessage()]) == 1


def test_a_replica_without_limits_needs_no_group(tmp_path: Path) -> None:
    limits = Limits(Home(tmp_path), tmp_path)
    limits.confine("iris-1", 4711, None, None)
    assert not limits.finish("iris-1")
    assert not list(tmp_path.iterdir())
