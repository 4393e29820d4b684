"""docs/reference/http-api.md is true of V2: its examples run against a server, its lists are those of the code."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.serving import ROOT, RunningServer

from pilotlight_predictor import errors
from pilotlight_predictor.core.tensors import DATATYPES
from pilotlight_predictor.protocols.v2.routes import PROTOCOL

PAGE = page_section("docs/reference/http-api.md", "V2 inference over HTTP")
WRITTEN_FOR = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def iris(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    repository = tmp_path_factory.mktemp("iris")
    shutil.copytree(ROOT / "examples" / "iris" / "repository", repository, dirs_exist_ok=True)
    (repository / "iris" / "1").mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples" / "iris" / "model.onnx", repository / "iris" / "1" / "model.onnx")
    return serve_module(repository)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("text", blocks("bash"))
def test_a_command_runs(iris: RunningServer, text: str) -> None:
    script = text.replace(WRITTEN_FOR, iris.url)
    assert iris.url in script
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("text", blocks("python"))
def test_a_program_runs(iris: RunningServer, text: str, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(text.replace(WRITTEN_FOR, iris.url))
    environment = {"NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr


def test_every_route_is_on_the_page() -> None:
    for route in PROTOCOL.routes:
        plain = route.pattern.replace("/versions/{version}", "").replace("/{repository}", "")
        last = plain.rpartition("/")[2]
        assert f"`{route.method} {plain}`" in PAGE or f"`…/{last}`" in PAGE or f"`{plain}`" in PAGE, plain


def test_every_status_and_datatype_is_on_the_page() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for status in {kind.status for kind in kinds} - {499}:  # type: ignore[attr-defined]
        assert re.search(rf"^\|[^|]*\b{status}\b", PAGE, re.MULTILINE), status
    for datatype in DATATYPES - {"UINT16", "UINT32", "INT16", "INT32"}:
        assert f"`{datatype}`" in PAGE
