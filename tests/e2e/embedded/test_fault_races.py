"""Two who deploy at the same moment, and a wall clock that jumps by days: neither leaves a trace in what runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tests.embedded import ROOT, Platform, load, serverless

KEY = ("default", "iris")
# Read by every Python process that has its folder on its path, before anything else.
JUMPS = """
import datetime, random, time

# No cycle: who looks at every fourth tick only would see none.
real, gmtime, jumps = time.time, time.gmtime, random.Random(1)
time.time = lambda: real() + jumps.uniform(-10, 10) * 86400
time.time_ns = lambda: int(time.time() * 1e9)
time.gmtime = lambda seconds=None: gmtime(time.time() if seconds is None else seconds)


class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)


datetime.datetime = Jumping
"""


def steady(places: int) -> str:
    """A revision of its own for each number of places."""
    return serverless(extra=f"    containerConcurrency: {places}").replace("minReplicas: 0", "minReplicas: 1")


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with Platform(tmp_path / "home") as running:
        yield running


def deploying(platform: Platform, document: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "platformctl", "deploy", "-f", str(document)]
    return subprocess.Popen(
        command, env=platform.env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def at_once(platform: Platform, folder: Path, documents: list[str]) -> None:
    """All of them from a command line of their own, and all end well."""
    files = [folder / f"{number}.yaml" for number in range(len(documents))]
    for file, document in zip(files, documents, strict=True):
        file.write_text(document)
    running = [deploying(platform, file) for file in files]
    told = [process.communicate(timeout=100)[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), "\n".join(told)


@pytest.mark.parametrize("rounds", [2, pytest.param(25, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_two_deploys_of_one_name_at_once_end_in_one_of_them(platform: Platform, tmp_path: Path, rounds: int) -> None:
    """The first round meets where there is no service yet."""
    for turn in range(rounds):
        at_once(platform, tmp_path, [steady(100 + 2 * turn), steady(101 + 2 * turn)])
        platform.wait(lambda: alone(platform), f"one to be left in round {turn}")
        assert platform.ask().status == 200
    assert platform.status().generation == 2 * rounds


def alone(platform: Platform) -> bool:
    """One revision has all requests and one replica, and there is no process beside it."""
    status = platform.status()
    newest = status.revisions[0]
    only = len(status.revisions) == 1 and (newest.percent, newest.ready) == (100, 1)
    return status.phase == "Ready" and only and len(platform.replicas()) == 1


def test_the_same_deploy_twice_at_once_is_one_deploy(platform: Platform, tmp_path: Path) -> None:
    at_once(platform, tmp_path, [steady(100), steady(100)])
    platform.wait(lambda: alone(platform), "it to be ready")
    assert platform.status().generation == 1


@pytest.mark.long
def test_a_wall_clock_that_jumps_by_days_scales_nothing(tmp_path: Path) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPS)
    with Platform(tmp_path / "home", env={"PYTHONPATH": str(tmp_path / "clock")}) as platform:
        platform.deploy(serverless(name="idle"))
        platform.wait_phase("Standby", name="idle")
        platform.wait(lambda: not platform.replicas(), "its process to have ended")
        platform.deploy(serverless())
        platform.wait_phase("Ready")
        replicas, events = platform.replicas(), scalings(platform)
        with load(platform, clients=1) as traffic:
            platform.wait(lambda: seconds_of_load(platform) >= 8, "more than a window of load")
            platform.kill_control()
            platform.start()
            assert platform.replicas() == replicas
            platform.wait(lambda: seconds_of_load(platform) >= 3, "some more, under the next control process")
        assert not traffic.failed, traffic.failed[:5]
        assert platform.replicas() == replicas
        assert scalings(platform) == events
        assert platform.status("idle").phase == "Standby"
        assert days_between_events(platform) >= 1


def scalings(platform: Platform) -> list[str]:
    return [event for event in platform.events() if event.startswith("Scaled")]


def seconds_of_load(platform: Platform) -> float:
    """How long the present control process has run, by the kernel's own clock."""
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    return since_boot - platform.address.start_ticks / os.sysconf("SC_CLK_TCK")


def days_between_events(platform: Platform) -> int:
    """Whether the clock has jumped at all."""
    stamps = sorted(datetime.fromisoformat(event.at) for event in platform.target.events(None, follow=False))
    return (stamps[-1] - stamps[0]).days
