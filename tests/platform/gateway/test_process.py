"""The gateway as a process: one per folder, restful, and able to bring its control process back."""

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.linked import DEADLINE_S, in_loop, linked

from pilotlight.gateway import control_process_restart, metrics_and_reports
from pilotlight.gateway.__main__ import main
from pilotlight.gateway.control_link import BackendReport, Report
from pilotlight.gateway.control_process_restart import Respawn, backoff
from pilotlight.gateway.metrics_and_reports import Reporter
from pilotlight.targets.local.control_process_launcher import start_ticks
from pilotlight.targets.local.gateway.gateway_link import gateway_command
from pilotlight.targets.local.home_directory import Home


@in_loop
async def test_a_folder_has_one_gateway(tmp_path: Path) -> None:
    async with linked(tmp_path) as made:
        await made.publish()
        second = await asyncio.create_subprocess_exec(*gateway_command(made.home), stderr=subprocess.PIPE)
        _, said = await asyncio.wait_for(second.communicate(), DEADLINE_S)
        assert second.returncode == 1
        assert said.decode() == f"another gateway runs in {tmp_path}; stop it first\n"
        assert (await made.publish()).generation == 2


@pytest.mark.parametrize("arguments", [[], ["--home"], ["--port", "80"], ["--home", "x", "--more", "y"]])
def test_a_call_that_is_none_gets_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: python -m pilotlight.gateway")


def test_pauses_between_attempts_grow_to_a_bound() -> None:
    assert [backoff(attempt) for attempt in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff(100_000) == 30


@in_loop
async def test_a_control_process_that_is_gone_is_started_again(tmp_path: Path) -> None:
    """The command is given as it stands: words with spaces in them stay whole."""
    note = tmp_path / "started again"
    command = (sys.executable, "-c", f"open({str(note)!r}, 'w').close()")
    words = gateway_command(Home(tmp_path), command)
    assert shlex.split(words[-1]) == list(command)
    async with linked(tmp_path, command=words) as made:
        await made.publish()
        assert made.link._gateway is not None
        made.link._started = False  # nobody comes back by itself
        made.link._gateway.close()
        await eventually_async(note.exists, "started")
        assert await made.link._connect()  # for the gateway to be ended


@in_loop
async def test_one_that_was_started_again_is_ended_when_another_has_come(tmp_path: Path) -> None:
    """It would find the place free as soon as the other one has ended, and bring everything back."""
    note = tmp_path / "pid"
    source = f"import os, time; os.symlink(str(os.getpid()), {str(note)!r}); time.sleep(60)"
    words = gateway_command(Home(tmp_path), (sys.executable, "-c", source))
    async with linked(tmp_path, command=words) as made:
        await made.publish()
        assert made.link._gateway is not None
        made.link._started = False
        made.link._gateway.close()
        await eventually_async(note.is_symlink, "started")
        begun = int(os.readlink(note))
        assert start_ticks(begun)
        assert await made.link._connect()
        await eventually_async(lambda: not start_ticks(begun), "ended")


@in_loop
async def test_attempts_go_on_until_somebody_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_process_restart, "FIRST_S", 0.001)
    monkeypatch.setattr(control_process_restart, "LONGEST_S", 0.002)
    started: list[Sequence[str]] = []
    bringing = Respawn(("control",), started.append)
    bringing.connected()
    bringing.disconnected()
    await eventually_async(lambda: len(started) >= 3, "three attempts")
    bringing.connected()
    before = len(started)
    await _pass(0.01)
    assert len(started) == before
    bringing.disconnected()  # it stayed for a moment only: the pauses go on growing
    await eventually_async(lambda: len(started) > before, "another attempt")
    bringing.cancel()
    assert started[0] == ("control",)


@in_loop
async def test_without_a_command_nobody_is_started() -> None:
    bringing = Respawn((), lambda words: pytest.fail("started"))
    bringing.disconnected()
    assert bringing._timer is None


class ScriptedPlane:
    """Reports what it is told to, and says when it is busy."""

    def __init__(self, *reports: Report) -> None:
        self.reports = list(reports)
        self.on_busy = lambda: None

    def clock(self) -> float:
        return 0.0

    def report(self, now: float) -> Report:
        return self.reports.pop(0) if self.reports else Report(1.0)


@in_loop
async def test_reports_go_on_while_anything_happens_and_then_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_and_reports, "INTERVAL_S", 0.001)
    some = Report(1.0, (BackendReport("default", "iris", "iris", "iris-1", 1.0, 1, 0, 0, 1),))
    plane = ScriptedPlane(some, some)
    kept: list[Report] = []
    said: list[Report] = []
    reporter = Reporter(plane, kept.append, said.append)  # type: ignore[arg-type]
    assert reporter._timer is None
    plane.on_busy()
    plane.on_busy()
    await eventually_async(lambda: len(kept) == 3 and reporter._timer is None, "rest")
    assert said == [some, some]
    plane.reports.append(some)
    await _pass(0.01)
    assert len(said) == 2
    plane.on_busy()
    await eventually_async(lambda: len(said) == 3, "awake again")
    reporter.close()


async def _pass(seconds: float) -> None:
    """Time in which something must not happen."""
    await asyncio.sleep(seconds)
