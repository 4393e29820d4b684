"""The gateway as a process: one per folder, and restful."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.linked import DEADLINE_S, in_loop, linked

from pilotlight.gateway import metrics_and_reports
from pilotlight.gateway.__main__ import main
from pilotlight.gateway.control_link import BackendReport, Report
from pilotlight.gateway.metrics_and_reports import Reporter
from pilotlight.targets.local.gateway.gateway_link import gateway_command


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
