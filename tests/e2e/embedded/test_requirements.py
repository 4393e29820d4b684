"""Models with requirements on one machine: installed by the deploy, executed in their environment, kept over zero."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.embedded.models import write_model
from tests.embedded import ROOT, Platform, inference_service
from tests.wheels import offline, write_wheel

from pilotlight.targets.local.supervisor.isolation import sandbox

MODEL = """
import tiny

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


def predict(x):
    print("asked for", x[0])
    return x + tiny.ANSWER
"""
REQUEST = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    write_wheel(tmp_path / "wheels", "tiny", source="ANSWER = 41")
    env = {**offline(tmp_path / "wheels"), "PILOTLIGHT_PILOT_LIGHT": "on"}
    with Platform(tmp_path / "home", env=env) as running:
        yield running


def deploy(platform: Platform, folder: Path, name: str, requirements: str) -> "subprocess.CompletedProcess[str]":
    uri = write_model(folder / name, MODEL)
    (folder / name / "requirements.txt").write_text(requirements)
    document = folder / f"{name}.yaml"
    document.write_text(inference_service(name, "python", uri, least=0, most=1))
    command = [sys.executable, "-m", "platformctl", "deploy", "-f", str(document)]
    return subprocess.run(command, env=platform.env, cwd=ROOT, capture_output=True, text=True, timeout=100)


def answer(platform: Platform, name: str) -> object:
    reply = platform.ask(f"/{name}/v2/models/{name}/infer", REQUEST)
    assert reply.status == 200, reply.body
    return reply.json()["outputs"][0]["data"]


def test_a_model_answers_from_its_environment_and_wakes_in_it_without_a_build(
    platform: Platform, tmp_path: Path
) -> None:
    deployed = deploy(platform, tmp_path, "first", "tiny")
    assert deployed.returncode == 0, deployed.stderr
    assert "Installed   " in deployed.stderr
    assert answer(platform, "first") == [42.0]
    (replica,) = platform.replicas()
    (built,) = (path for path in platform.home.environments.iterdir() if path.is_dir())
    assert Path(f"/proc/{replica}/cmdline").read_bytes().startswith(f"{built}/bin/python".encode())
    key = ("default", "first")
    lines = partial(platform.target.logs, key, follow=False, previous=False, replica="", tail=100)
    platform.wait(lambda: any("asked for 1.0" in str(line) for line in lines()), "the output of the model", 10)
    assert platform.replicas() == [replica]  # not only at its end
    (tmp_path / "wheels" / "tiny-1.0-py3-none-any.whl").unlink()  # a build would fail from here on
    platform.wait_phase("Standby", name="first")
    platform.wait(lambda: not platform.replicas(), "the replica to end")
    assert answer(platform, "first") == [42.0]
    again = deploy(platform, tmp_path, "second", "tiny")
    assert again.returncode == 0, again.stderr
    assert "Installing" not in again.stderr
    assert answer(platform, "second") == [42.0]


def test_a_replica_installs_what_no_deploy_has_installed(platform: Platform, tmp_path: Path) -> None:
    uri = write_model(tmp_path / "model", MODEL)
    (tmp_path / "model" / "requirements.txt").write_text("tiny")
    platform.deploy(inference_service("direct", "python", uri, least=1, most=1))
    platform.wait_phase("Ready", name="direct")
    assert answer(platform, "direct") == [42.0]


@pytest.mark.skipif(not sandbox.detect().kind, reason="this machine has no sandbox")
def test_a_sandboxed_model_has_its_environment_in_the_sandbox(platform: Platform, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    uri = write_model(tmp_path / "model", MODEL)
    (tmp_path / "model" / "requirements.txt").write_text("tiny")
    isolated = "    pilotlight.dev/isolation: sandbox"
    platform.deploy(inference_service("org", "python", uri, least=1, most=1, annotations=isolated))
    platform.wait_phase("Ready", name="org")
    assert answer(platform, "org") == [42.0]


def test_refused_requirements_deploy_nothing(platform: Platform, tmp_path: Path) -> None:
    refused = deploy(platform, tmp_path, "refused", "tiny\nnosuchpackage")
    assert refused.returncode == 2, refused.stderr
    assert "requirements.txt: nosuchpackage is in no configured package index" in refused.stderr
    assert not platform.target.list(None)


def test_a_missing_package_is_named_with_the_file_that_mends_it(platform: Platform, tmp_path: Path) -> None:
    failed = deploy(platform, tmp_path, "bare", "")
    assert failed.returncode != 0
    fix = "the package 'tiny' is not installed; name it in requirements.txt beside model.py"
    assert fix in failed.stderr
