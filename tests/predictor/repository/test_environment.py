"""A predictor whose model has requirements: it is executed again in their environment, or says what is wrong."""

import subprocess
import sys
import sysconfig
import venv
from contextlib import suppress
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.serving import RunningServer
from tests.wheels import offline, write_wheel

MODEL = "import tiny\n\n\ndef predict(x):\n    return {'y': x + tiny.ANSWER}\n"
REQUEST = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_wheel(tmp_path / "wheels", "tiny", source="ANSWER = 41")
    folder = tmp_path / "churn"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    (folder / "requirements.txt").write_text("tiny")
    return folder


@pytest.mark.parametrize("scheme", ["", "file://"])  # known before it listens, and known after the fetch
def test_a_model_is_served_in_its_environment(model: Path, tmp_path: Path, scheme: str) -> None:
    flags = f"--model-path={scheme}{model}", f"--cache-dir={tmp_path / 'cache'}", f"--http-port={free_port()}"
    server = RunningServer(tmp_path, *flags, env=offline(tmp_path / "wheels"), ready=False)

    def ready() -> bool:
        with suppress(OSError):  # while it is executed again
            return server.get("/v2/health/ready").status == 200
        return False

    try:
        server.wait_until(ready, "ready")
        assert server.infer("churn", REQUEST).json()["outputs"][0]["data"] == [42.0]
        executed = Path(f"/proc/{server.process.pid}/cmdline").read_text().split("\0")[0]
        assert Path(executed).is_relative_to(tmp_path / "cache" / "environments")
    finally:
        server.stop()


def run(model: Path, *arguments: str, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
    command = [python, "-m", "pilotlight_predictor", *arguments]
    env = {**offline(model.parent / "wheels"), "PATH": str(Path(sys.executable).parent), "HOME": str(model.parent)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)


def test_requirements_that_cannot_be_installed_end_the_start_with_the_reason(model: Path) -> None:
    (model / "requirements.txt").write_text("-e .")
    ended = run(model, "--model-path", str(model))
    assert ended.returncode == 1
    assert "requirements.txt, line 1: -e .: paths and URLs are not installed; name a package" in ended.stderr


def test_an_image_brings_the_environment_along(model: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    venv.create(image, with_pip=False)
    (packages,) = image.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    python = str(image / "bin" / "python")
    built = run(model, "environment", str(model / "requirements.txt"), python=python)
    folder = Path(built.stdout.strip())
    assert folder.parent == image / "share" / "pilotlight" / "environments", built.stderr
    assert folder.parent.stat().st_mode & 0o5 == folder.stat().st_mode & 0o5 == 0o5  # for the user of the image
    again = run(model, "environment", str(model), python=python)  # as a server that finds the same requirements
    assert (again.stdout, again.stderr) == (built.stdout, "")


def test_the_command_for_images_says_what_it_misses(model: Path) -> None:
    (model / "requirements.txt").unlink()
    assert "no model.py with a requirements.txt" in run(model, "environment", str(model)).stderr
    assert run(model, "environment", "--help").returncode == 2
