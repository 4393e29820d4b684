"""A command answers before its user looks away. Measured in CPU time, so that a busy machine does not fail it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import ROOT

RUNS = 5


def cpu_seconds(argv: list[str], environ: dict[str, str]) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "platformctl", *argv], cwd=ROOT, env=environ, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize(
    ("argv", "budget"), [(["--help"], 0.15), (["render", "-f", "examples/services/iris.yaml"], 0.5)]
)
def test_a_command_is_quick_once_python_has_compiled_it(argv: list[str], budget: float, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    cpu_seconds(argv, environ)
    assert min(cpu_seconds(argv, environ) for _ in range(RUNS)) < budget
