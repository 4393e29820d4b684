"""Clients that others wrote, each in a process of its own: their protobuf messages would collide in one."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.onnx_models import write_python
from tests.predictor.zoo import write_zoo
from tests.serving import ROOT, RunningServer

SCRIPTS = Path(__file__).parent / "scripts"
JUDGES = ("triton_sync.py", "triton_aio.py", "kserve_rest.py")


def checks_of(script: str) -> list[str]:
    body = ast.parse((SCRIPTS / script).read_text()).body
    functions = [node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [node.name for node in functions if node.name.startswith("check_")]


@pytest.fixture(scope="module")
def verdicts(
    tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]
) -> Callable[[str], dict[str, str]]:
    """script → what became of each of its checks; each script runs once."""
    repository = write_zoo(tmp_path_factory.mktemp("judged"))
    server = serve_module(repository, "--model-control-mode", "explicit", "--load-model=*")
    write_python(repository, "broken", "this is no Python")  # which no client has loaded yet

    @cache
    def run(script: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        command = [sys.executable, "-W", "ignore", str(SCRIPTS / script), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=ROOT, env=clean)
        assert done.returncode == 0, done.stderr[-4000:]
        return dict(json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.mark.parametrize(("script", "check"), [(script, check) for script in JUDGES for check in checks_of(script)])
def test_a_foreign_client_is_content(verdicts: Callable[[str], dict[str, str]], script: str, check: str) -> None:
    assert not (failure := verdicts(script)[check]), failure
