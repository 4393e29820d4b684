"""A command answers before its user looks away.

Measured in CPU time, so that a busy machine does not fail it, and against what a part of the standard library takes to
import, so that a slow one does not either.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import ROOT

RUNS = 5
# A tenth of a second on a machine of 2024.
UNIT = ["-c", "import asyncio, email.message, http.client, json, logging, ssl, subprocess"]


def cpu_seconds(argv: list[str], environ: dict[str, str]) -> float:
    before = os.times()
    subprocess.run([sys.executable, *argv], cwd=ROOT, env=environ, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize(("argv", "units"), [(["--help"], 1.5), (["render", "-f", "examples/services/iris.yaml"], 5.0)])
def test_a_command_is_quick_once_python_has_compiled_it(argv: list[str], units: float, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    command = ["-m", "platformctl", *argv]
    for each in (command, UNIT):
        cpu_seconds(each, environ)
    taken, unit = zip(*((cpu_seconds(command, environ), cpu_seconds(UNIT, environ)) for _ in range(RUNS)), strict=True)
    assert min(taken) < units * min(unit)
