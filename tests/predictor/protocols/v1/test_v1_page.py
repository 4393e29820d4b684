"""docs/reference/http-api.md is true of V1: its examples run against a server, its lists are those of the code."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.serving import ROOT, RunningServer

from pilotlight_predictor.protocols.v1 import PROTOCOL

PAGE = page_section("docs/reference/http-api.md", "V1 over HTTP")
WRITTEN_FOR = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def iris(serve_module: Callable[..., RunningServer]) -> RunningServer:
    return serve_module(None, "--model-path", str(ROOT / "examples" / "iris" / "model.onnx"), "--model-name", "iris")


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("text", blocks("bash"))
def test_a_command_runs(iris: RunningServer, text: str) -> None:
    script = text.replace(WRITTEN_FOR, iris.url)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, '{"predictions":[[0.999' in done.stdout) == (0, True), done


@pytest.mark.skipif(find_spec("kserve") is None, reason="the kserve extra is not installed")
@pytest.mark.parametrize("text", blocks("python"))
def test_a_program_runs(iris: RunningServer, text: str, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(text.replace(WRITTEN_FOR, iris.url))
    environment = {"NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr


def test_every_route_is_on_the_page() -> None:
    for route in PROTOCOL.routes:
        assert f"`{route.method} {route.pattern.replace('/versions/{version}', '')}`" in PAGE
