"""A disk without room, for the state, the logs or both: what serves goes on, and all is well once there is room."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.embedded import Platform, load, serverless

from pilotlight.errors import PlatformError
from pilotlight.targets.local.home_directory import Home

KEY = ("default", "iris")
STEADY = serverless().replace("minReplicas: 0", "minReplicas: 1")
SECOND = serverless(extra="    containerConcurrency: 32").replace("minReplicas: 0", "minReplicas: 1")


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own, as root may make one."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0700", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not one byte is left within the block."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    try:
        yield
    finally:
        filler.unlink()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """Its home is a disk of 3 MiB."""
    with small_disk(tmp_path / "home", 3) as folder, Platform(folder) as running:
        running.deploy(STEADY)
        running.wait_phase("Ready")
        yield running


def test_a_full_disk_refuses_changes_in_one_sentence_and_serves_on(platform: Platform) -> None:
    before = platform.replicas()
    with load(platform, clients=2) as traffic:
        with full(platform.home.root):
            with pytest.raises(PlatformError) as refused:
                platform.deploy(SECOND)
            told = str(refused.value)
            assert "state.db: the disk is full; free some space" in told
            assert "\n" not in told
            with pytest.raises(PlatformError, match="the disk is full"):
                platform.target.scale(KEY, {"minReplicas": 2, "maxReplicas": 2})
            with pytest.raises(PlatformError, match="the disk is full"):
                platform.target.delete(KEY)
            assert platform.status().phase == "Ready"
            assert platform.replicas() == before
        platform.deploy(SECOND)
        platform.wait(lambda: platform.status().revisions[0].percent == 100, "the change, once there is room")
    assert traffic.answers
    assert not traffic.failed, traffic.failed[:5]


def test_replicas_that_die_while_the_disk_is_full_are_replaced_and_later_remembered(platform: Platform) -> None:
    (victim,) = platform.replicas()
    with full(platform.home.root):
        os.kill(victim, signal.SIGKILL)
        platform.wait(lambda: len(set(platform.replicas()) - {victim}) == 1, "the next one")
        platform.wait(lambda: platform.status().revisions[0].ready == 1, "it to be ready")
        assert platform.ask().status == 200
    replicas = platform.replicas()
    platform.wait(lambda: remembered(platform), "the replacement to be written down")
    platform.kill_control()
    platform.start()
    platform.wait(lambda: platform.status().phase == "Ready", "it to be taken over")
    assert platform.replicas() == replicas


def remembered(platform: Platform) -> bool:
    """Whether the state on the disk knows the processes that there are."""
    with closing(sqlite3.connect(f"file:{platform.home.database}?mode=ro", uri=True)) as connection:
        stored = {json.loads(value)["pid"] for (value,) in connection.execute("SELECT value FROM replicas")}
    return stored == set(platform.replicas())


def test_a_service_sleeps_and_wakes_while_the_disk_is_full(platform: Platform) -> None:
    platform.deploy(serverless())
    platform.wait_phase("Ready")
    with full(platform.home.root):
        platform.wait_phase("Standby")
        platform.wait(lambda: not platform.replicas(), "the process to end")
        assert platform.ask().status == 200
        assert platform.wait_phase("Ready").revisions[0].ready == 1
    platform.wait(lambda: remembered(platform), "it to be written down")


def test_a_control_process_that_dies_while_the_disk_is_full_comes_back_with_room(platform: Platform) -> None:
    replicas = platform.replicas()
    with load(platform, clients=2) as traffic:
        with full(platform.home.root):
            platform.kill_control()
            seen = len(traffic.answers)
            platform.wait(lambda: len(traffic.answers) > seen + 100, "answers without it")
        platform.wait(platform.answers, "it to be back")
    assert not traffic.failed, traffic.failed[:5]
    assert platform.replicas() == replicas


def test_full_logs_cost_lines_and_nothing_else(tmp_path: Path) -> None:
    """State on the disk of the tests, logs on a small one."""
    home = tmp_path / "home"
    with small_disk(home / "logs", 1) as logs, Platform(home) as platform, full(logs):
        platform.deploy(STEADY)
        platform.wait_phase("Ready")
        platform.deploy(SECOND)
        platform.wait(lambda: platform.status().revisions[0].percent == 100, "the second revision")
        assert platform.ask().status == 200
        platform.wait(lambda: len(platform.replicas()) == 1, "the first one to end")


def test_a_long_log_of_the_control_process_is_cut_when_it_starts(tmp_path: Path) -> None:
    log = Home(tmp_path / "home").create().logs / "daemon.log"
    log.write_bytes((b"x" * 99 + b"\n") * 110_000)
    with Platform(tmp_path / "home"):
        assert log.stat().st_size < 1 << 20
        assert log.with_name("daemon.log.1").stat().st_size >= 11_000_000
