"""`platformctl demo` end to end: a platform of its own, real replicas, a canary, zero, and a cold start."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import ROOT
from tests.embedded import processes_of
from tests.ports import free_port

from pilotlight.targets.local.home_directory import Home
from pilotlight.wire.environments.install_command import install_command
from platformctl import main
from platformctl.commands.platform.demo import activation


def test_the_demo_goes_from_deploy_over_a_canary_to_zero_and_back_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = {**os.environ, "PILOTLIGHT_HOME": str(home), "PILOTLIGHT_SERVICE_PORTS": "0"}
    env |= {"PILOTLIGHT_GATEWAY_PORT": str(free_port()), "PILOTLIGHT_API_PORT": str(free_port())}
    command = [sys.executable, "-m", "platformctl", "demo", "--stop"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = done.stderr
    assert "100 requests sent, 100 succeeded" in said
    rows = re.findall(r"(\S+) +(\d+) %(?: @\w+)? +1/1 .* (\d+) +\d+ +sha256:\w+ +\S+ \w+$", done.stdout, re.M)
    shares = {int(percent): int(answered) for _, percent, answered in rows}
    assert shares.keys() == {20, 80}
    assert 12 <= shares[20] <= 28
    assert "100 % to demo-iris-predictor-" in said
    assert re.search(r"scaled to zero after \d+\.\d s", said)
    assert re.search(r"after a cold start of \d+ ms", said)
    assert re.search(r"total +\d+ ms", said)
    assert processes_of(Home(home)) == []


@pytest.mark.parametrize(("words", "ending"), [([], "platformctl demo"), (["STOP=1"], "platformctl demo --stop")])
def test_make_runs_the_same_command(words: list[str], ending: str) -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "-n", "demo", *words], cwd=ROOT, capture_output=True, text=True, env=alone)
    assert done.stdout.rstrip().endswith(ending), done.stderr


def test_at_its_end_it_names_the_script_that_puts_the_command_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert activation() == []  # an interpreter without an environment
    (folder / "activate").touch()
    assert activation() == [". .venv/bin/activate"]
    (folder / "platformctl").touch(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert activation() == []


def test_without_onnxruntime_it_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main.run(["demo"]) == 1
    assert capsys.readouterr().err.endswith(f"onnxruntime, which is not installed\n  {install_command('onnx')}\n")
