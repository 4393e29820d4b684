"""kill -9 of the control process at any moment of a deploy, a scale or a canary: nobody who asks notices.

Its parent process starts it again. What it finds is the state before or after what was interrupted, and the living
replicas.
"""

import os
import random
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.embedded import Platform, commands_of, load, serverless

from pilotlight.errors import PlatformError
from pilotlight.targets.local.manifests.interpret import revisions_of
from pilotlight.targets.target import Share

KEY = ("default", "iris")
LATEST_S = 0.6  # after the beginning of a change; most are over by then, starts of replicas are not
PLACE = "    containerConcurrency: {}"


def steady(number: int, percent: int = 100) -> str:
    """A revision of its own for each number, one replica at least."""
    extra = PLACE.format(number) + (f"\n    canaryTrafficPercent: {percent}" if percent < 100 else "")
    return serverless(extra=extra).replace("minReplicas: 0", "minReplicas: 1")


@pytest.fixture
def platform(shared: Platform) -> Iterator[Platform]:
    """With a service that is ready; emptied after each test."""
    shared.deploy(steady(100))
    shared.wait_phase("Ready")
    yield shared
    shared.empty()


def control_processes(platform: Platform) -> list[int]:
    return [
        pid for pid, command in commands_of(platform.home) if "pilotlight.control_plane.daemon" in command.split("\0")
    ]


@contextmanager
def killed_after(platform: Platform, seconds: float, *, restart: bool = False) -> Iterator[None]:
    """The control process dies while the block runs, or just after; the block is left when it is back.

    By its parent process, or by whoever wants something of it (`restart`).
    """
    address = platform.address
    process, platform.process = platform.process, None  # its end is no surprise
    timer = threading.Timer(seconds, os.kill, (address.pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        if process is not None:
            process.wait(10)
        if restart:
            platform.start()
        platform.wait(lambda: platform.answers() and platform.address.pid != address.pid, "it to be back")


def deploy(platform: Platform, turn: int) -> None:
    platform.deploy(steady(101 + turn))


def canary(platform: Platform, turn: int) -> None:
    platform.deploy(steady(101 + turn, percent=20))


def scale(platform: Platform, turn: int) -> None:
    platform.target.scale(KEY, {"minReplicas": 1 + turn % 3, "maxReplicas": 3})


def split(platform: Platform, turn: int) -> None:
    names = [row.name for row in platform.status().revisions]
    shares = [Share(names[0], 50), Share(names[-1], 50)] if len(names) > 1 else [Share(names[0], 100)]
    platform.target.traffic(KEY, shares if turn % 2 else None)


CHANGES: tuple[Callable[[Platform, int], None], ...] = (deploy, canary, scale, split)
# What comes of a change when nobody answers any more is seen from the state.
unanswered = partial(suppress, PlatformError, OSError, HTTPException)


def settled(platform: Platform) -> bool:
    """As many processes as replicas are wanted, all of them ready, and each revision one that a document names."""
    status = platform.status()
    wanted = sum(row.desired for row in status.revisions)
    ready = sum(row.ready for row in status.revisions)
    known = {row.name for row in status.revisions} <= named(platform)
    return known and status.phase == "Ready" and wanted == ready == len(platform.replicas())


def named(platform: Platform) -> set[str]:
    """Revisions that the manifests of any stored document describe."""
    return {name for release in platform.target.releases(KEY) for _, name, _ in revisions_of(release.manifests)}


def turns(platform: Platform, count: int, seed: int) -> None:
    chance = random.Random(seed)
    with load(platform, clients=2) as traffic:
        for turn in range(count):
            before = platform.status().generation
            moment = chance.uniform(0.0, LATEST_S)
            with killed_after(platform, moment, restart=turn % 10 > 0), unanswered():
                CHANGES[turn % len(CHANGES)](platform, turn)
            assert platform.status().generation in (before, before + 1)
            platform.wait(lambda: settled(platform), f"turn {turn} to settle")
            # One that the parent process has started as well ends when it has seen that there is another.
            platform.wait(lambda: len(control_processes(platform)) == 1, "one control process")
    assert traffic.answers
    assert not traffic.failed, traffic.failed[:5]


def test_a_control_process_killed_within_changes_leaves_the_state_before_or_after(platform: Platform) -> None:
    turns(platform, len(CHANGES), seed=20)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_the_control_process_lose_no_request(platform: Platform) -> None:
    turns(platform, 100, seed=21)


def test_living_replicas_are_taken_over_by_the_next_control_process(platform: Platform) -> None:
    replicas = platform.replicas()
    assert len(replicas) == 1
    with load(platform, clients=2) as traffic:
        for _ in range(2):
            platform.wait(lambda: platform.status().phase == "Ready", "it to be ready")
            with killed_after(platform, 0.0):
                pass
            assert platform.status().revisions[0].ready == 1
            assert platform.replicas() == replicas
    assert traffic.answers
    assert not traffic.failed, traffic.failed[:5]


def test_what_ended_while_nobody_looked_is_replaced(platform: Platform) -> None:
    (victim,) = platform.replicas()
    with killed_after(platform, 0.0):
        time.sleep(0)  # the timer's thread goes first
        os.kill(victim, signal.SIGKILL)
    platform.wait(lambda: settled(platform) and platform.replicas() != [victim], "the replacement")
    assert platform.ask().status == 200


def test_a_service_at_zero_wakes_though_the_control_process_was_killed(platform: Platform) -> None:
    """The request waits in the gateway until somebody is there to start a replica."""
    platform.deploy(serverless())
    platform.wait_phase("Standby")
    with killed_after(platform, 0.0):
        platform.wait(lambda: not platform.answers(), "it to be gone")
        assert platform.ask().status == 200


def test_a_delete_that_was_interrupted_is_finished(platform: Platform) -> None:
    with killed_after(platform, 0.02), unanswered():
        platform.target.delete(KEY)
    if any(status.phase != "Stopping" for status in platform.target.list(None)):
        platform.target.delete(KEY)
    platform.wait(lambda: not platform.target.list(None) and not platform.replicas(), "it to be gone")
    platform.deploy(steady(100))
    platform.wait_phase("Ready")


def test_the_control_process_may_open_as_many_files_as_the_system_lets_it(tmp_path: Path) -> None:
    """Every service holds sockets there, even at zero."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1, 1024), hard))
    try:
        with Platform(tmp_path / "home") as platform:
            assert resource.prlimit(platform.address.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_stored_service_that_cannot_be_run_fails_alone_and_can_be_deployed_again(platform: Platform) -> None:
    other = ("default", "other")
    platform.deploy(serverless("other"))
    platform.wait_phase("Ready", name="other")
    with closing(sqlite3.connect(platform.home.database, timeout=60)) as database, database:
        changed = "replace(cast(manifests AS TEXT), 'pilotlight/predictor', 'nginx/predictor')"
        database.execute(f"UPDATE releases SET manifests = {changed} WHERE name = 'other'")
    platform.kill_control()  # the next one reads what is stored
    platform.wait(platform.answers, "the control process to be back")
    found = platform.status("other")
    assert (found.phase, platform.ask().status) == ("Failed", 200)
    assert "image nginx/predictor" in found.message
    assert platform.ask("/other/v2/models/other/infer").status == 503
    with pytest.raises(PlatformError, match="its stored release cannot run"):
        platform.target.scale(other, {"minReplicas": 1})
    platform.deploy(serverless("other"))
    platform.wait_phase("Ready", "Standby", name="other")
    assert platform.ask("/other/v2/models/other/infer").status == 200
